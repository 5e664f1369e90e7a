#pragma once
// Messages for distributed tests: contents that differ at every byte of every pair of ranks.
#include <cstddef>
#include <span>
#include <vector>

#include "src/core/rng.h"

namespace espalier::parallel {

inline std::vector<std::byte> content(int from, int to, size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>(mix(static_cast<uint64_t>(from * 100 + to), i));
  }
  return bytes;
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <class T>
std::span<std::byte> writable_bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

// Sizes on both sides of the limits where transports switch protocols (16 KiB for threads; 4 KiB,
// 32 KiB and the parts of 100,003 bytes for MPI).
inline const std::vector<size_t> kSizes{0, 1, 17, 4096, 16384, 16385, 100'003, 100'004, 300'001};

}  // namespace espalier::parallel
