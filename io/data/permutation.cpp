#include "io/data/permutation.h"

#include <algorithm>
#include <bit>

#include "src/core/error.h"
#include "src/core/rng.h"

namespace espalier::io {

int64_t permuted(uint64_t key, int64_t place, int64_t size) {
  constexpr uint64_t kRounds = 8;
  require(place >= 0 && place < size, "a place lies within the permutation", place, size);
  const auto end = static_cast<uint64_t>(size);
  const uint64_t half = std::max<uint64_t>((std::bit_width(end - 1) + 1) / 2, 1);
  const uint64_t mask = (uint64_t{1} << half) - 1;
  auto x = static_cast<uint64_t>(place);
  do {
    uint64_t left = x >> half;
    uint64_t right = x & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t next = left ^ (philox(key, round, right)[0] & mask);
      left = right;
      right = next;
    }
    x = left << half | right;
  } while (x >= end);
  return static_cast<int64_t>(x);
}

}  // namespace espalier::io
