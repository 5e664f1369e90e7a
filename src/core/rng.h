#pragma once
// Philox 4x32-10, a counter-based generator: the numbers are a pure function of (key, counter), so
// any rank or thread can draw any element without state, and the bits are the same on every
// backend. Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section
// 4.
#include <array>
#include <cstdint>
#include <span>

namespace espalier {

using Philox = std::array<uint32_t, 4>;

inline Philox philox(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
  Philox c{static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
           static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)};
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53U} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57U} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return c;
}

/// The words of 16 consecutive counters: word w of counter_low + i is at 4 i + w. With AVX2 or
/// AVX-512 a small part of the time of 16 single draws.
std::array<uint32_t, 64> philox_block(uint64_t key, uint64_t counter_high, uint64_t counter_low);

/// [0, 1), 24 bits.
inline float uniform(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1.0p-24F; }

// 128-bit integers are not ISO C++; every compiler we build with has them.
__extension__ using uint128 = unsigned __int128;

/// Uniform integer below `bound`, from 64 random bits (bias below bound / 2^64).
inline uint64_t below(uint64_t bits, uint64_t bound) {
  return static_cast<uint64_t>((static_cast<uint128>(bits) * bound) >> 64);
}

/// Two independent standard normals from two words (Box-Muller); the same bits on every CPU.
std::array<float, 2> normal_pair(uint32_t a, uint32_t b);

/// out[k] = the standard normal of position p = positions[k] >= 0 in the stream of `key`: number
/// p % 2 of normal_pair(words 2 i and 2 i + 1 of philox(key, 0, p / 4)), i = p / 2 % 2. Some 10 ns
/// each with AVX-512.
void normals_at(uint64_t key, std::span<const int32_t> positions, std::span<float> out);

/// A well-mixed 64-bit key from a seed and a stream number or name hash (splitmix64).
inline uint64_t mix(uint64_t seed, uint64_t stream) {
  uint64_t z = seed + 0x9E3779B97F4A7C15U * (stream + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

}  // namespace espalier
