#pragma once
// The magnitudes of 8-bit wire codes, and a search-free lookup of the nearest.
//
// A set's magnitudes t_0 < t_1 < … (t_0 = 0) are numbered by rank. The nearest to a is t_r, r = the
// number of middles (t_k + t_k+1) / 2 below a (in the middle: the smaller). A cell is the set of
// floats that share exponent and upper mantissa bits, so narrow that it holds at most one middle.
// So r = rank[cell] + (a > threshold[cell]): two loads and a compare.
//
//   set           magnitudes                                              rank r is sent as
//   dynamic8      0, 126 of the tree, 1                                   r, sign in bit 7
//   dynamic8_bnb  0, 127 of dynamic_map, 1 (above zero only)              127 + r or 127 - r
//   static8       10^-e c, e = 0 … 7, c = 16 leaves; the least of all is 0     r, sign in bit 7
//   mantissa8     m 10^-e, e = 0 … 7, m = 0 … 15: 114 different ones      r, sign in bit 7
//
// Leaves of d decisions over (0.1, 1): the root splits at 0.45, all other nodes in the middle; the
// value of a leaf is its centre. The program of Dettmers, ICLR 2016 builds the dynamic tree this
// way (decade 10^-e has 2^(6-e) leaves, e = 0 … 5); his example of the static tree matches it.
#include <cstdint>

#include "src/kernels/rules/shared.h"

namespace espalier::kernels::wire {

enum class MagnitudeSet : uint8_t { dynamic8, dynamic8_bnb, static8, mantissa8 };
inline constexpr int kMagnitudeSets = 4;

struct MagnitudeTable {
  static constexpr int kMax = 129;
  static constexpr int kCells = 2048;
  int count = 0;          ///< magnitudes
  float magnitude[kMax];  ///< t
  float value[256];       ///< of each byte; the largest for a byte that encodes no rank
  int shift = 0;          ///< cell = (bits of a >> shift) - first, within [0, cells)
  int32_t first = 0;
  int32_t cells = 0;
  float threshold[kCells];  ///< infinite if the cell holds no middle
  int32_t rank[kCells];
};

/// All tables, in one block that is copied to a device.
struct WireTables {
  static constexpr int kPowers = 76;
  MagnitudeTable magnitudes[kMagnitudeSets];
  float powers_of_ten[kPowers];  ///< 10^-37 … 10^38, ascending

  ESPALIER_RULE const MagnitudeTable& of(MagnitudeSet set) const {
    return magnitudes[static_cast<int>(set)];
  }
};
const WireTables& wire_tables();

/// The rank of the nearest magnitude.
ESPALIER_RULE int32_t nearest(const MagnitudeTable& table, float a) {
  int32_t cell = (static_cast<int32_t>(bits_of(a)) >> table.shift) - table.first;
  cell = cell < 0 ? 0 : cell;
  cell = cell < table.cells ? cell : table.cells - 1;
  return table.rank[cell] + (a > table.threshold[cell] ? 1 : 0);
}

/// The rank of one of the two magnitudes around a, the nearer one with higher probability.
ESPALIER_RULE int32_t around(const MagnitudeTable& table, float a, uint32_t word) {
  const int32_t last = table.count - 1;
  const int32_t near = nearest(table, a);
  const int32_t below = near - (table.magnitude[near] > a ? 1 : 0);
  const int32_t above = below < last ? below + 1 : last;
  const float low = table.magnitude[below];
  const float drawn = static_cast<float>(static_cast<int32_t>(word >> 8)) * 0x1p-24F;
  return drawn * (table.magnitude[above] - low) < a - low ? above : below;
}

/// The least power of ten that is not below `largest` (or 10^38); 0 for 0.
ESPALIER_RULE float power_of_ten(const float* powers, float largest) {
  int k = 0;  // the number of powers, without the last, that are below
  for (int step = 64; step > 0; step /= 2) {
    k += k + step < WireTables::kPowers && powers[k + step - 1] < largest ? step : 0;
  }
  return largest == 0 ? 0.0F : powers[k];
}

}  // namespace espalier::kernels::wire
