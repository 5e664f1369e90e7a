#pragma once
// Gradients for distributed tests, and the sum in rank order, which every rank can compute alone.
// Results are compared with it bit for bit, so all transports agree with each other.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "parallel/transport/collectives.h"
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

/// A rank's values, rounded to T.
template <class T>
std::vector<T> values_of(int rank, int step, int64_t count) {
  std::vector<T> x(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    x[i] = from_float<T>(value(rank, step, i));
  }
  return x;
}
inline std::vector<float> values(int rank, int step, int64_t count) {
  return values_of<float>(rank, step, count);
}
/// Values within (-1, 1).
inline std::vector<float> gradient(int rank, int step, int64_t count) {
  std::vector<float> x = values(rank, step, count);
  for (float& one : x) {
    one *= 0x1p-24F;
  }
  return x;
}

/// Their sum over ranks: added in fp32 in rank order, then rounded once.
template <class T>
std::vector<T> expected_of(int ranks, int step, int64_t count) {
  std::vector<T> sums(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    float sum = to_float(from_float<T>(value(0, step, i)));
    for (int r = 1; r < ranks; ++r) {
      sum += to_float(from_float<T>(value(r, step, i)));
    }
    sums[i] = from_float<T>(sum);
  }
  return sums;
}
inline std::vector<float> expected_sum(int ranks, int step, int64_t count) {
  return expected_of<float>(ranks, step, count);
}

template <class T>
Tensor flat_of(std::vector<T>& x) {
  return {x.data(), dtype_of<T>(), Shape{static_cast<int64_t>(x.size())}};
}

inline bool same_bits(const auto& a, const auto& b) {
  const auto x = std::as_bytes(std::span(a));
  const auto y = std::as_bytes(std::span(b));
  return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size()) == 0);
}

/// Whether all ranks hold the same bits. Collective.
template <class T>
bool equal_everywhere(Communicator& comm, const std::vector<T>& x) {
  std::vector<T> all(x.size() * static_cast<size_t>(comm.size()));
  all_gather(comm, std::as_bytes(std::span(x)), std::as_writable_bytes(std::span(all)));
  bool equal = true;
  for (size_t at = 0; at < all.size() && !x.empty(); at += x.size()) {
    equal &= same_bits(x, std::span(all).subspan(at, x.size()));
  }
  return equal;
}

}  // namespace espalier::parallel
