#include "src/core/rng.h"

#include <cmath>
#include <cstring>
#include <numbers>

namespace espalier {
namespace {

using Block = std::array<uint32_t, 64>;
using Lanes [[gnu::vector_size(64)]] = uint64_t;  // a 32-bit word each
constexpr uint64_t kWord = 0xffffffffU;

/// Eight counters from `low` on.
[[gnu::always_inline]] inline void draw_eight(uint64_t key, uint64_t high, uint64_t low,
                                              uint32_t* out) {
  const Lanes counter = low + Lanes{0, 1, 2, 3, 4, 5, 6, 7};
  Lanes c[4] = {counter & kWord, counter >> 32, Lanes{} + (high & kWord), Lanes{} + (high >> 32)};
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const Lanes p0 = c[0] * 0xD2511F53U;
    const Lanes p1 = c[2] * 0xCD9E8D57U;
    c[0] = (p1 >> 32) ^ c[1] ^ uint64_t { k0 };
    c[2] = (p0 >> 32) ^ c[3] ^ uint64_t { k1 };
    c[1] = p1 & kWord;
    c[3] = p0 & kWord;
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  const Lanes words01 = c[0] | c[1] << 32;
  const Lanes words23 = c[2] | c[3] << 32;
  const Lanes parts[2] = {__builtin_shufflevector(words01, words23, 0, 8, 1, 9, 2, 10, 3, 11),
                          __builtin_shufflevector(words01, words23, 4, 12, 5, 13, 6, 14, 7, 15)};
  std::memcpy(out, parts, sizeof(parts));
}

[[gnu::always_inline]] inline void draw_block(uint64_t key, uint64_t high, uint64_t low,
                                              uint32_t* out) {
  draw_eight(key, high, low, out);
  draw_eight(key, high, low + 8, out + 32);
}

void draw_plain(uint64_t key, uint64_t high, uint64_t low, uint32_t* out) {
  draw_block(key, high, low, out);
}

#ifdef __x86_64__
[[gnu::target("avx2")]] void draw_avx2(uint64_t key, uint64_t high, uint64_t low, uint32_t* out) {
  draw_block(key, high, low, out);
}
[[gnu::target("avx512dq")]] void draw_avx512(uint64_t key, uint64_t high, uint64_t low,
                                             uint32_t* out) {
  draw_block(key, high, low, out);
}
auto choose_draw() {
  return __builtin_cpu_supports("avx512dq") != 0 ? draw_avx512
         : __builtin_cpu_supports("avx2") != 0   ? draw_avx2
                                                 : draw_plain;
}
#else
auto choose_draw() { return draw_plain; }
#endif

}  // namespace

std::array<uint32_t, 64> philox_block(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
  static const auto draw = choose_draw();
  Block block;
  draw(key, counter_high, counter_low, block.data());
  return block;
}

std::array<float, 2> normal_pair(uint32_t a, uint32_t b) {
  const double u =
      (static_cast<double>(a) + 1.0) * 0x1.0p-32;  // (0, 1]: the logarithm stays finite
  const double angle = 2.0 * std::numbers::pi * static_cast<double>(b) * 0x1.0p-32;
  const double radius = std::sqrt(-2.0 * std::log(u));
  return {static_cast<float>(radius * std::cos(angle)),
          static_cast<float>(radius * std::sin(angle))};
}

}  // namespace espalier
