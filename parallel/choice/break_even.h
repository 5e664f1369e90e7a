#pragma once
// The size from which compressing an exchange saves time, from measurements at some sizes. Seconds
// are interpolated linearly between measured sizes. The result is the last crossing: compression
// saves time at every larger measured size, and may also do so at some smaller one.
//
// - 0: compression saves time at every size, from the smallest on.
// - kNeverPays: it saves no time at the largest size; larger, unmeasured sizes are not
//   extrapolated.
// - Equal seconds save nothing.
#include <cstdint>
#include <limits>
#include <span>

namespace espalier::parallel {

struct ExchangePair {
  int64_t elements = 0;
  double plain = 0;       ///< seconds
  double compressed = 0;  ///< seconds, encoding and decoding included
};

inline constexpr int64_t kNeverPays = std::numeric_limits<int64_t>::max();

/// Result in elements. At least one pair; sizes ascend.
int64_t break_even(std::span<const ExchangePair> pairs);

}  // namespace espalier::parallel
