#pragma once
// Gradients for distributed tests, and the sum in rank order that every rank can compute alone.
// Results are compared with it bit for bit: so the transports agree with each other, too.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "src/core/rng.h"

namespace espalier::parallel {

/// Differs at every element of every rank and step, over many magnitudes: another order rounds
/// otherwise.
inline float value(int rank, int step, int64_t i) {
  const uint64_t bits =
      mix(mix(static_cast<uint64_t>(step), static_cast<uint64_t>(rank)), static_cast<uint64_t>(i));
  return std::ldexp(static_cast<float>(static_cast<int32_t>(bits >> 32)) * 0x1p-31F,
                    static_cast<int>(bits % 24));
}

inline std::vector<float> values(int rank, int step, int64_t count) {
  std::vector<float> x(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    x[i] = value(rank, step, i);
  }
  return x;
}

inline std::vector<float> expected_sum(int ranks, int step, int64_t count) {
  std::vector<float> sum = values(0, step, count);
  for (int r = 1; r < ranks; ++r) {
    for (int64_t i = 0; i < count; ++i) {
      sum[i] = sum[i] + value(r, step, i);
    }
  }
  return sum;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
  return std::ranges::equal(a, b, {}, bits, bits);
}

}  // namespace espalier::parallel
