#pragma once
// Eight codes of 1 to 8 bits, one in each byte of a word, to `bits` bytes side by side and back;
// and such groups in memory at any address. See cpu/wire_pack.h.
#include "src/kernels/cuda/elements.h"

namespace espalier::kernels::ESPALIER_GPU {

__device__ __forceinline__ uint64_t closed(uint64_t v, int bits) {
  v = (v & 0x00ff00ff00ff00ffU) | ((v & 0xff00ff00ff00ff00U) >> (8 - bits));
  v = (v & 0x0000ffff0000ffffU) | ((v & 0xffff0000ffff0000U) >> (16 - 2 * bits));
  return (v & 0x00000000ffffffffU) | ((v & 0xffffffff00000000U) >> (32 - 4 * bits));
}

__device__ __forceinline__ uint64_t opened(uint64_t v, int bits) {
  const uint64_t four = (uint64_t{1} << (4 * bits)) - 1;
  const uint64_t two = ((uint64_t{1} << (2 * bits)) - 1) * 0x0000000100000001U;
  const uint64_t one = ((uint64_t{1} << bits) - 1) * 0x0001000100010001U;
  v = (v & four) | ((v & (four << (4 * bits))) << (32 - 4 * bits));
  v = (v & two) | ((v & (two << (2 * bits))) << (16 - 2 * bits));
  return (v & one) | ((v & (one << bits)) << (8 - bits));
}

template <class Word>
__device__ __forceinline__ void store_words(std::byte* to, uint64_t v, int bytes) {
  constexpr int kBytes = sizeof(Word);
  for (int b = 0; b < bytes; b += kBytes) {
    *reinterpret_cast<Word*>(to + b) = static_cast<Word>(v >> (8 * b));
  }
}

/// The lowest `bytes` bytes of v.
__device__ __forceinline__ void store_bytes(std::byte* to, uint64_t v, int bytes) {
  if (bytes == 8 && aligned(to, 8)) {
    *reinterpret_cast<uint64_t*>(to) = v;
  } else if (bytes % 4 == 0 && aligned(to, 4)) {
    store_words<uint32_t>(to, v, bytes);
  } else if (bytes % 2 == 0 && aligned(to, 2)) {
    store_words<uint16_t>(to, v, bytes);
  } else {
    store_words<uint8_t>(to, v, bytes);
  }
}

template <class Word>
__device__ __forceinline__ uint64_t load_words(const std::byte* from, int bytes) {
  constexpr int kBytes = sizeof(Word);
  uint64_t v = 0;
  for (int b = 0; b < bytes; b += kBytes) {
    v |= uint64_t{*reinterpret_cast<const Word*>(from + b)} << (8 * b);
  }
  return v;
}

__device__ __forceinline__ uint64_t load_bytes(const std::byte* from, int bytes) {
  if (bytes == 8 && aligned(from, 8)) {
    return *reinterpret_cast<const uint64_t*>(from);
  }
  if (bytes % 4 == 0 && aligned(from, 4)) {
    return load_words<uint32_t>(from, bytes);
  }
  if (bytes % 2 == 0 && aligned(from, 2)) {
    return load_words<uint16_t>(from, bytes);
  }
  return load_words<uint8_t>(from, bytes);
}

}  // namespace espalier::kernels::ESPALIER_GPU
