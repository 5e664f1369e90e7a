#include "src/kernels/rules/wire/magnitude_table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "src/core/error.h"
#include "src/kernels/rules/dynamic_map.h"

namespace espalier::kernels::wire {
namespace {

using Numbers = std::vector<double>;

void add_leaves(double low, double high, int decisions, Numbers& leaves) {
  const double middle = (low + high) / 2;
  if (decisions == 0) {
    leaves.push_back(middle);
    return;
  }
  add_leaves(low, middle, decisions - 1, leaves);
  add_leaves(middle, high, decisions - 1, leaves);
}

/// 2^decisions leaves over (0.1, 1), the root split at 0.45.
Numbers tree(int decisions) {
  constexpr double kRoot = 0.45;
  Numbers leaves;
  add_leaves(0.1, kRoot, decisions - 1, leaves);
  add_leaves(kRoot, 1, decisions - 1, leaves);
  return leaves;
}

Numbers dynamic_magnitudes() {
  Numbers numbers{0, 1};
  for (int e = 0; e <= 5; ++e) {
    for (const double leaf : tree(6 - e)) {
      numbers.push_back(leaf * std::pow(10.0, -e));
    }
  }
  return numbers;
}

Numbers map_magnitudes() {
  const auto& map = dynamic_map(DynamicMap::with_sign);
  return {map.begin() + 127, map.end()};
}

Numbers static_magnitudes() {
  Numbers numbers;
  for (int e = 0; e <= 7; ++e) {
    for (const double leaf : tree(4)) {
      numbers.push_back(leaf * std::pow(10.0, -e));
    }
  }
  *std::min_element(numbers.begin(), numbers.end()) = 0;
  return numbers;
}

Numbers mantissa_magnitudes() {
  Numbers numbers;
  for (int e = 0; e <= 7; ++e) {
    for (int m = 0; m <= 15; ++m) {
      numbers.push_back(m / std::pow(10.0, e));
    }
  }
  return numbers;
}

int32_t cell_of(const MagnitudeTable& table, float a) {
  const auto key = static_cast<int32_t>(std::bit_cast<uint32_t>(a) >> table.shift);
  return std::clamp(key - table.first, 0, table.cells - 1);
}

/// False if two middles fall into one cell.
bool try_cells(MagnitudeTable& table, const std::vector<float>& middles) {
  table.first = static_cast<int32_t>(std::bit_cast<uint32_t>(middles.front()) >> table.shift);
  table.cells = MagnitudeTable::kCells;
  table.cells = cell_of(table, middles.back()) + 1;
  std::fill_n(table.threshold, table.cells, std::numeric_limits<float>::infinity());
  std::fill_n(table.rank, table.cells, 0);
  for (const float middle : middles) {
    const int32_t cell = cell_of(table, middle);
    if (std::isfinite(table.threshold[cell])) {
      return false;
    }
    table.threshold[cell] = middle;
  }
  int32_t rank = 0;
  for (int32_t cell = 0; cell < table.cells; ++cell) {
    table.rank[cell] = rank;
    rank += std::isfinite(table.threshold[cell]) ? 1 : 0;
  }
  return true;
}

void make_cells(MagnitudeTable& table) {
  std::vector<float> middles;
  for (int k = 1; k < table.count; ++k) {
    middles.push_back(
        static_cast<float>((double{table.magnitude[k - 1]} + double{table.magnitude[k]}) / 2));
  }
  table.shift = 22;
  while (!try_cells(table, middles)) {
    --table.shift;
  }
}

MagnitudeTable make(Numbers magnitudes, bool offset) {
  MagnitudeTable table;
  std::vector<float> sorted(magnitudes.begin(), magnitudes.end());
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  table.count = static_cast<int>(sorted.size());
  require(sorted.front() == 0 && table.count <= MagnitudeTable::kMax,
          "a table begins at zero and fits 8 bits", table.count);
  std::copy(sorted.begin(), sorted.end(), table.magnitude);
  for (int byte = 0; byte < 256; ++byte) {
    const int rank = offset ? std::abs(byte - 127) : byte & 127;
    const bool negative = offset ? byte < 127 : byte > 127;
    const float magnitude = table.magnitude[std::min(rank, table.count - 1)];
    table.value[byte] = negative ? -magnitude : magnitude;
  }
  make_cells(table);
  return table;
}

}  // namespace

const WireTables& wire_tables() {
  static const WireTables tables = [] {
    WireTables made{{make(dynamic_magnitudes(), false), make(map_magnitudes(), true),
                     make(static_magnitudes(), false), make(mantissa_magnitudes(), false)},
                    {}};
    for (int k = 0; k < WireTables::kPowers; ++k) {
      made.powers_of_ten[k] = static_cast<float>(std::pow(10.0, k - 37));
    }
    return made;
  }();
  return tables;
}

}  // namespace espalier::kernels::wire
