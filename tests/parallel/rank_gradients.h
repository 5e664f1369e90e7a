#pragma once
// Gradients for distributed tests, and the sum in rank order, which every rank can compute alone.
// Results are compared with it bit for bit, so all transports agree with each other.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "src/core/rng.h"
#include "src/core/tensor.h"

namespace espalier::parallel {

/// Differs at every element of every rank and step, over many magnitudes: another order of the sum
/// rounds differently.
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

/// The sum in 16 bits: every rank's values are rounded, added in fp32 in rank order, then rounded
/// once.
template <class Half = bf16>
std::vector<Half> rounded(std::span<const float> x) {
  std::vector<Half> y;
  for (const float one : x) {
    y.push_back(from_float<Half>(one));
  }
  return y;
}

template <class Half>
std::vector<Half> half_values(int rank, int step, int64_t count) {
  return rounded<Half>(values(rank, step, count));
}
inline std::vector<bf16> bf16_values(int rank, int step, int64_t count) {
  return half_values<bf16>(rank, step, count);
}

template <class Half>
std::vector<Half> expected_half_sum(int ranks, int step, int64_t count) {
  std::vector<float> sum(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    sum[i] = to_float(from_float<Half>(value(0, step, i)));
    for (int r = 1; r < ranks; ++r) {
      sum[i] = sum[i] + to_float(from_float<Half>(value(r, step, i)));
    }
  }
  return rounded<Half>(sum);
}
inline std::vector<bf16> expected_bf16_sum(int ranks, int step, int64_t count) {
  return expected_half_sum<bf16>(ranks, step, count);
}

template <class T>
Tensor flat_of(std::vector<T>& x) {
  return {x.data(), dtype_of<T>(), Shape{static_cast<int64_t>(x.size())}};
}

/// Values and sums by element type, for tests templated on the type.
template <class T>
std::vector<T> values_of(int rank, int step, int64_t count) {
  if constexpr (std::is_same_v<T, float>) {
    return values(rank, step, count);
  } else {
    return half_values<T>(rank, step, count);
  }
}
template <class T>
std::vector<T> expected_of(int ranks, int step, int64_t count) {
  if constexpr (std::is_same_v<T, float>) {
    return expected_sum(ranks, step, count);
  } else {
    return expected_half_sum<T>(ranks, step, count);
  }
}

inline bool same_bits(std::span<const bf16> a, std::span<const bf16> b) {
  return std::ranges::equal(a, b);
}
inline bool same_bits(std::span<const fp16> a, std::span<const fp16> b) {
  return std::ranges::equal(a, b);
}

}  // namespace espalier::parallel
