#pragma once
// Codes of 1 to 8 bits, one in each byte, to bits side by side and back. Eight codes are one word;
// three steps close (or open) the gaps between halves of its lanes.
#include <cstddef>
#include <cstdint>

#include "src/kernels/cpu/simd/loops.h"

namespace espalier::kernels::ESPALIER_ISA {

[[gnu::always_inline]] inline uint64_t closed(uint64_t v, int bits) {
  v = (v & 0x00ff00ff00ff00ffU) | ((v & 0xff00ff00ff00ff00U) >> (8 - bits));
  v = (v & 0x0000ffff0000ffffU) | ((v & 0xffff0000ffff0000U) >> (16 - 2 * bits));
  return (v & 0x00000000ffffffffU) | ((v & 0xffffffff00000000U) >> (32 - 4 * bits));
}

[[gnu::always_inline]] inline uint64_t opened(uint64_t v, int bits) {
  const uint64_t four = (uint64_t{1} << (4 * bits)) - 1;
  const uint64_t two = ((uint64_t{1} << (2 * bits)) - 1) * 0x0000000100000001U;
  const uint64_t one = ((uint64_t{1} << bits) - 1) * 0x0001000100010001U;
  v = (v & four) | ((v & (four << (4 * bits))) << (32 - 4 * bits));
  v = (v & two) | ((v & (two << (2 * bits))) << (16 - 2 * bits));
  return (v & one) | ((v & (one << bits)) << (8 - bits));
}

/// n codes, each below 2^bits, to ⌈n bits / 8⌉ bytes, exactly these.
[[gnu::always_inline]] inline void pack(const uint8_t* codes, int64_t n, int bits,
                                        std::byte* wire) {
  int64_t i = 0;
  // Words of eight bytes, of which the next overwrites what is too much.
  for (; i + 64 <= n; i += 8, wire += bits) {
    uint64_t word;
    __builtin_memcpy(&word, codes + i, 8);
    word = closed(word, bits);
    __builtin_memcpy(wire, &word, 8);
  }
  for (; i < n; i += 8) {
    const int64_t rest = least(8, n - i);
    uint64_t word = 0;
    for (int64_t j = 0; j < rest; ++j) {
      word |= uint64_t{codes[i + j]} << (8 * j);
    }
    word = closed(word, bits);
    for (int64_t j = 0; j < divide_up(rest * bits, 8); ++j) {
      *wire++ = static_cast<std::byte>(word >> (8 * j));
    }
  }
}

/// The inverse; reads exactly ⌈n bits / 8⌉ bytes.
[[gnu::always_inline]] inline void unpack(const std::byte* wire, int64_t n, int bits,
                                          uint8_t* codes) {
  int64_t i = 0;
  for (; i + 64 <= n; i += 8, wire += bits) {
    uint64_t word;
    __builtin_memcpy(&word, wire, 8);
    word = opened(word, bits);
    __builtin_memcpy(codes + i, &word, 8);
  }
  for (; i < n; i += 8) {
    const int64_t rest = least(8, n - i);
    uint64_t word = 0;
    for (int64_t j = 0; j < divide_up(rest * bits, 8); ++j) {
      word |= static_cast<uint64_t>(*wire++) << (8 * j);
    }
    word = opened(word, bits);
    for (int64_t j = 0; j < rest; ++j) {
      codes[i + j] = static_cast<uint8_t>(word >> (8 * j));
    }
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
