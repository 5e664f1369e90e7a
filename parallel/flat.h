#pragma once
// A flat array is a contiguous tensor [n]; these helpers serve the collectives. An empty tensor has
// no elements.
#include <span>

#include "src/core/arena.h"

namespace espalier::parallel {

inline int64_t flat_count(const Tensor& flat) { return flat ? flat.count() : 0; }

/// Elements [first, first + count).
inline Tensor flat_part(const Tensor& flat, int64_t first, int64_t count) {
  return {static_cast<std::byte*>(flat.data) + static_cast<size_t>(first) * size_of(flat.dtype),
          flat.dtype, Shape{count}};
}

inline std::span<std::byte> flat_bytes(const Tensor& flat) {
  return {static_cast<std::byte*>(flat.data), flat ? flat.bytes() : 0};
}

/// At least `count` elements; contents are lost when it grows.
inline void reserve(Arena& arena, Buffer& buffer, std::string_view name, DType dtype,
                    int64_t count) {
  if (!buffer.tensor() || buffer.tensor().dtype != dtype || buffer.tensor().count() < count) {
    buffer.release();
    buffer = arena.allocate(Memory::communication, name, dtype, Shape{count});
  }
}

}  // namespace espalier::parallel
