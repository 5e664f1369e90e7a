#pragma once
// The numbers behind 8-bit wire codes, made once, and found without a search.
//
// A code's magnitudes t_0 < t_1 < … (t_0 = 0) are numbered by rank; the nearest to a is t_r, r =
// how many of the middles (t_k + t_k+1) / 2 are below a (in the middle: the smaller). Floats that
// share their exponent and upper bits of their mantissa are a cell; cells are so narrow that at
// most one middle falls into each. So r = rank[cell] + (a > threshold[cell]): two loads and a
// compare.
//
//   code          magnitudes                                              rank r is sent as
//   dynamic8      0, 126 of the tree, 1                                   r, sign in bit 7
//   dynamic8_bnb  0, 127 of dynamic_map, 1 (above zero only)              127 + r or 127 - r
//   static8       10^-e c, e = 0 … 7, c = 16 leaves; the least of all is 0     r, sign in bit 7
//   mantissa8     m 10^-e, e = 0 … 7, m = 0 … 15: 114 different ones      r, sign in bit 7
//
// Leaves of d decisions over (0.1, 1): the root splits at 0.45, all other nodes in the middle; a
// leaf stands for its centre. That is what the program of Dettmers, ICLR 2016 does for the dynamic
// tree (decade 10^-e has 2^(6-e) leaves, e = 0 … 5), and what his example of the static tree has as
// well.
#include <cstdint>

#include "src/kernels/wire_format.h"

namespace espalier::kernels {

struct MagnitudeTable {
  static constexpr int kMost = 129;
  static constexpr int kCells = 2048;
  int count = 0;           ///< magnitudes
  float magnitude[kMost];  ///< t
  float value[256];        ///< of each byte; of one that no rank is sent as, the largest
  int shift = 0;           ///< cell = (bits of a >> shift) - first, within [0, cells)
  int32_t first = 0;
  int32_t cells = 0;
  float threshold[kCells];  ///< infinite where no middle falls into the cell
  int32_t rank[kCells];
};

/// Of one of the four codes above.
const MagnitudeTable& magnitude_table(WireCode code);

/// 10^-37 … 10^38, ascending.
std::span<const float> powers_of_ten();
/// The least power of ten, 10^-37 … 10^38, that is not below `largest` (or 10^38); 0 for 0.
float power_of_ten(float largest);

/// `out[k - 1]` = the percentile 99 k / count of n > 0 numbers that are not negative, k = 1 …
/// count: of the sorted numbers the one at place (n - 1) times that, rounded. Overwrites the
/// numbers.
void percentiles(float* numbers, int64_t n, int count, float* out);
/// The most numbers that percentiles takes.
inline constexpr int64_t kMostNumbers = 2048;

}  // namespace espalier::kernels
