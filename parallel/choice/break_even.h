#pragma once
// From which size on compressing an exchange pays, by what was measured at some sizes: seconds are
// taken as piecewise linear between them, and the answer is the last crossing, so that below it one
// exchange may gain but above it every measured one does.
//
// 0: always, also at the smallest size. kNeverPays: not at the largest; sizes that nobody measured
// promise nothing. Equal seconds do not pay. Of a size measured several times, the least seconds
// count.
#include <cstdint>
#include <limits>
#include <span>

namespace espalier::parallel {

struct ExchangePair {
  int64_t elements = 0;
  double plain = 0;       ///< seconds
  double compressed = 0;  ///< seconds, codes made and read included
};

inline constexpr int64_t kNeverPays = std::numeric_limits<int64_t>::max();

/// Elements. At least one pair, in any order.
int64_t break_even(std::span<const ExchangePair> measured);

}  // namespace espalier::parallel
