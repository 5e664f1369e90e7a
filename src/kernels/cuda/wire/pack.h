#pragma once
// Packed codes in memory at any address, eight at a time (rules/wire/arithmetic.h). If the codes of
// a message are aligned to 4 bytes, also four at a time: half as many bytes, which may end within a
// byte.
#include "src/kernels/cuda/simt/elements.h"
#include "src/kernels/rules/wire/arithmetic.h"

namespace espalier::kernels::ESPALIER_GPU {

using wire::closed;
using wire::opened;

/// `closed` for four codes.
__device__ __forceinline__ uint32_t closed_four(uint32_t v, int bits) {
  v = (v & 0x00ff00ffU) | ((v & 0xff00ff00U) >> (8 - bits));
  return (v & 0x0000ffffU) | ((v & 0xffff0000U) >> (16 - 2 * bits));
}
/// `opened` for four codes; v may have bits above them.
__device__ __forceinline__ uint32_t opened_four(uint32_t v, int bits) {
  const uint32_t two = (1U << (2 * bits)) - 1;
  const uint32_t one = ((1U << bits) - 1) * 0x00010001U;
  v = (v & two) | ((v & (two << (2 * bits))) << (16 - 2 * bits));
  return (v & one) | ((v & (one << bits)) << (8 - bits));
}
/// Packs the lowest bytes of four words.
__device__ __forceinline__ uint32_t pack_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

template <class Word>
__device__ __forceinline__ void store_words(std::byte* to, uint64_t v, int bytes) {
  constexpr int kBytes = sizeof(Word);
  for (int b = 0; b < bytes; b += kBytes) {
    *reinterpret_cast<Word*>(to + b) = static_cast<Word>(v >> (8 * b));
  }
}

/// Stores the lowest `bytes` bytes of v.
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

/// Stores quad number `quad` of codes; v has one code per byte. Called by whole warps with
/// neighbouring quads that start at an even one: two quads that share a byte are stored together.
__device__ __forceinline__ void store_four(std::byte* codes, int64_t quad, int bits, uint32_t v) {
  if (bits == 8) {
    reinterpret_cast<uint32_t*>(codes)[quad] = v;
  } else if (bits == 4) {
    reinterpret_cast<uint16_t*>(codes)[quad] = static_cast<uint16_t>(closed_four(v, 4));
  } else if (bits == 2) {
    reinterpret_cast<uint8_t*>(codes)[quad] = static_cast<uint8_t>(closed_four(v, 2));
  } else {
    v = closed_four(v, bits);
    const uint64_t next = __shfl_down_sync(0xffffffffU, v, 1);
    if (quad % 2 == 0) {
      store_words<uint8_t>(codes + quad / 2 * bits, v | next << 4 * bits, bits);
    }
  }
}

/// v[j] = quad number first + j step of codes; bits above it are unspecified.
template <int kCount>
__device__ __forceinline__ void load_fours(const std::byte* codes, int64_t first, int64_t step,
                                           int bits, uint32_t (&v)[kCount]) {
  const auto each = [&](const auto& load) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      v[j] = static_cast<uint32_t>(load(first + j * step));
    }
  };
  if (bits == 8) {
    each([=](int64_t quad) { return reinterpret_cast<const uint32_t*>(codes)[quad]; });
  } else if (bits == 4) {
    each([=](int64_t quad) { return reinterpret_cast<const uint16_t*>(codes)[quad]; });
  } else if (bits == 2) {
    each([=](int64_t quad) { return reinterpret_cast<const uint8_t*>(codes)[quad]; });
  } else if (bits == 1) {
    each([=](int64_t quad) {
      return reinterpret_cast<const uint8_t*>(codes)[quad / 2] >> quad % 2 * 4;
    });
  } else {
    each([=](int64_t quad) {
      const int64_t bit = 4 * bits * quad;
      const auto shift = static_cast<int>(bit % 8);
      return load_words<uint8_t>(codes + bit / 8, (shift + 4 * bits + 7) / 8) >> shift;
    });
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
