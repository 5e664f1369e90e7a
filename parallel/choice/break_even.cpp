#include "parallel/choice/break_even.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/core/error.h"

namespace espalier::parallel {

namespace {

/// Sorted by size, one pair a size.
std::vector<ExchangePair> in_order(std::span<const ExchangePair> measured) {
  std::vector<ExchangePair> sorted(measured.begin(), measured.end());
  std::ranges::stable_sort(sorted, {}, &ExchangePair::elements);
  std::vector<ExchangePair> pairs;
  for (const ExchangePair& pair : sorted) {
    require(pair.elements >= 0 && pair.plain >= 0 && pair.compressed >= 0 &&
                std::isfinite(pair.plain) && std::isfinite(pair.compressed),
            "sizes and seconds", pair.elements, pair.plain, pair.compressed);
    if (pairs.empty() || pairs.back().elements != pair.elements) {
      pairs.push_back(pair);
    } else {
      pairs.back().plain = std::min(pairs.back().plain, pair.plain);
      pairs.back().compressed = std::min(pairs.back().compressed, pair.compressed);
    }
  }
  return pairs;
}

double gain(const ExchangePair& pair) { return pair.plain - pair.compressed; }

}  // namespace

int64_t break_even(std::span<const ExchangePair> measured) {
  require(!measured.empty(), "something measured");
  const std::vector<ExchangePair> pairs = in_order(measured);
  const auto pays = [](const ExchangePair& pair) { return gain(pair) > 0; };
  const auto above = std::find_if_not(pairs.rbegin(), pairs.rend(), pays).base();
  if (above == pairs.end()) {
    return kNeverPays;
  }
  if (above == pairs.begin()) {
    return 0;
  }
  const ExchangePair& low = *std::prev(above);  // the largest size where compression saves nothing
  const ExchangePair& high = *above;
  const double part = -gain(low) / (gain(high) - gain(low));
  const auto steps =
      static_cast<int64_t>(std::floor(part * static_cast<double>(high.elements - low.elements)));
  return std::min(low.elements + steps + 1, high.elements);
}

}  // namespace espalier::parallel
