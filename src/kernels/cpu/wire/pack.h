#pragma once
// Packs codes of 1 to 8 bits, one in each byte, to adjacent bits, and back; words at any address.
#include <cstddef>
#include <cstdint>

#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/rules/wire/arithmetic.h"

namespace espalier::kernels::ESPALIER_ISA {

[[gnu::always_inline]] inline void put_word(std::byte* wire, uint32_t word) {
  __builtin_memcpy(wire, &word, sizeof word);
}
[[gnu::always_inline]] inline uint32_t get_word(const std::byte* wire) {
  uint32_t word;
  __builtin_memcpy(&word, wire, sizeof word);
  return word;
}
[[gnu::always_inline]] inline void put_carried(std::byte* wire, const wire::Carried& carried,
                                               int64_t bytes) {
  __builtin_memcpy(wire, carried.word, static_cast<size_t>(least(bytes, 8)));
}
[[gnu::always_inline]] inline wire::Carried get_carried(const std::byte* wire, int64_t bytes) {
  return {{get_word(wire), bytes >= 8 ? get_word(wire + 4) : 0U}};
}

/// Packs n codes, each below 2^bits, to exactly ⌈n bits / 8⌉ bytes.
[[gnu::always_inline]] inline void pack(const uint8_t* codes, int64_t n, int bits,
                                        std::byte* wire) {
  int64_t i = 0;
  // Writes words of eight bytes; the next word overwrites the excess.
  for (; i + 64 <= n; i += 8, wire += bits) {
    uint64_t word;
    __builtin_memcpy(&word, codes + i, 8);
    word = wire::closed(word, bits);
    __builtin_memcpy(wire, &word, 8);
  }
  for (; i < n; i += 8) {
    const int64_t rest = least(8, n - i);
    uint64_t word = 0;
    for (int64_t j = 0; j < rest; ++j) {
      word |= uint64_t{codes[i + j]} << (8 * j);
    }
    word = wire::closed(word, bits);
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
    word = wire::opened(word, bits);
    __builtin_memcpy(codes + i, &word, 8);
  }
  for (; i < n; i += 8) {
    const int64_t rest = least(8, n - i);
    uint64_t word = 0;
    for (int64_t j = 0; j < divide_up(rest * bits, 8); ++j) {
      word |= static_cast<uint64_t>(*wire++) << (8 * j);
    }
    word = wire::opened(word, bits);
    for (int64_t j = 0; j < rest; ++j) {
      codes[i + j] = static_cast<uint8_t>(word >> (8 * j));
    }
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
