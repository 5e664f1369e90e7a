#include "src/core/rng.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

namespace espalier {
namespace {

constexpr size_t kLanes = 8;
using Lanes [[gnu::vector_size(64)]] = uint64_t;  // of draws: a 32-bit word each
using Doubles [[gnu::vector_size(64)]] = double;
constexpr uint64_t kWord = 0xffffffffU;

/// c: the counters (low, high half); afterwards their four words.
[[gnu::always_inline]] inline void draw(uint64_t key, Lanes (&c)[4]) {
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
}

[[gnu::always_inline]] inline void block(uint64_t key, uint64_t high, uint64_t low, uint32_t* out) {
  for (size_t i = 0; i < 2; ++i) {
    const Lanes counter = low + i * kLanes + Lanes{0, 1, 2, 3, 4, 5, 6, 7};
    Lanes c[4] = {counter & kWord, counter >> 32, Lanes{} + (high & kWord), Lanes{} + (high >> 32)};
    draw(key, c);
    const Lanes words01 = c[0] | c[1] << 32;
    const Lanes words23 = c[2] | c[3] << 32;
    const Lanes parts[2] = {__builtin_shufflevector(words01, words23, 0, 8, 1, 9, 2, 10, 3, 11),
                            __builtin_shufflevector(words01, words23, 4, 12, 5, 13, 6, 14, 7, 15)};
    std::memcpy(out + 4 * kLanes * i, parts, sizeof(parts));
  }
}

/// Exact for numbers below 2^52.
#define ESPALIER_DOUBLES(lanes) \
  (__builtin_bit_cast(Doubles, (lanes) | 0x4330000000000000U) - 0x1p52)

/// out[i] = Box-Muller of words a and b: the sine if `sine` is 1, the cosine if 0. Additions,
/// multiplications, divisions and roots only, so that every CPU gives the same bits; the error is
/// some 1e-15. ln u = e ln 2 + 2 artanh(s), s = (m - 1) / (m + 1), for u = m 2^e near 1.
[[gnu::always_inline]] inline void box_muller(const Lanes& a, const Lanes& b, const Lanes& sine,
                                              float* out) {
  const Doubles n = ESPALIER_DOUBLES(a) + 1;  // u = n / 2^32 in (0, 1]: the logarithm stays finite
  const Lanes bits = __builtin_bit_cast(Lanes, n);
  Doubles m = __builtin_bit_cast(Doubles, (bits & 0xfffffffffffffU) | 0x3ff0000000000000U);
  Doubles e = ESPALIER_DOUBLES(bits >> 52) - (1023 + 32);
  const auto large = m > std::numbers::sqrt2;
  m = large ? m * 0.5 : m;
  e = large ? e + 1 : e;
  const Doubles s = (m - 1) / (m + 1);
  const Doubles z = s * s;
  Doubles series = Doubles{} + 1.0 / 23;
  for (int k = 21; k > 0; k -= 2) {
    series = series * z + 1.0 / k;
  }
  const Doubles square = -2 * (e * std::numbers::ln2 + 2 * s * series);
  Doubles radius;
  for (size_t i = 0; i < kLanes; ++i) {
    radius[i] = std::sqrt(square[i]);
  }
  // Reduced to x within pi/4 around a multiple of pi/2; sin t = cos(t - pi/2).
  const Lanes quarter = (b + (uint64_t{1} << 29)) >> 30;
  const Doubles x =
      (ESPALIER_DOUBLES(b) - ESPALIER_DOUBLES(quarter) * 0x1p30) * (std::numbers::pi * 0x1p-31);
  const Doubles y = -x * x;
  Doubles sin = Doubles{} + 1;
  Doubles cos = Doubles{} + 1;
  for (int k = 18; k > 0; k -= 2) {
    sin = sin * y * (1.0 / (k * (k + 1))) + 1;
    cos = cos * y * (1.0 / (k * (k - 1))) + 1;
  }
  const Lanes turn = (quarter + 3 * sine) & 3;
  const auto odd = (turn & 1) != 0;
  const auto negative = ((turn + 1) & 2) != 0;
  Doubles value = odd ? x * sin : cos;
  value = negative ? -value : value;
  const Doubles normal = radius * value;
  for (size_t i = 0; i < kLanes; ++i) {
    out[i] = static_cast<float>(normal[i]);
  }
}
#undef ESPALIER_DOUBLES

/// Draws of eight positions.
[[gnu::always_inline]] inline void normals(uint64_t key, const int32_t* positions, float* out) {
  Lanes position;
  for (size_t i = 0; i < kLanes; ++i) {
    position[i] = static_cast<uint32_t>(positions[i]);
  }
  Lanes c[4] = {position >> 2, Lanes{}, Lanes{}, Lanes{}};
  draw(key, c);
  const auto second = (position & 2) != 0;
  const Lanes a = second ? c[2] : c[0];
  const Lanes b = second ? c[3] : c[1];
  box_muller(a, b, position & 1, out);
}

/// The functions above for one kind of CPU.
struct Draws {
  void (*block)(uint64_t key, uint64_t high, uint64_t low, uint32_t* out);
  void (*normals)(uint64_t key, const int32_t* positions, float* out);
};

#define ESPALIER_DRAWS(name, ...)                                                           \
  __VA_ARGS__ void block_##name(uint64_t key, uint64_t high, uint64_t low, uint32_t* out) { \
    block(key, high, low, out);                                                             \
  }                                                                                         \
  __VA_ARGS__ void normals_##name(uint64_t key, const int32_t* positions, float* out) {     \
    normals(key, positions, out);                                                           \
  }                                                                                         \
  constexpr Draws k_##name = {block_##name, normals_##name};

ESPALIER_DRAWS(plain)
#ifdef __x86_64__
ESPALIER_DRAWS(avx2, [[gnu::target("avx2")]])
ESPALIER_DRAWS(avx512, [[gnu::target("avx512dq")]])
Draws choose_draws() {
  return __builtin_cpu_supports("avx512dq") != 0 ? k_avx512
         : __builtin_cpu_supports("avx2") != 0   ? k_avx2
                                                 : k_plain;
}
#else
Draws choose_draws() { return k_plain; }
#endif
#undef ESPALIER_DRAWS

const Draws& draws() {
  static const Draws chosen = choose_draws();
  return chosen;
}

}  // namespace

std::array<uint32_t, 64> philox_block(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
  std::array<uint32_t, 64> words;
  draws().block(key, counter_high, counter_low, words.data());
  return words;
}

void normals_at(uint64_t key, std::span<const int32_t> positions, std::span<float> out) {
  size_t k = 0;
  for (; k + kLanes <= positions.size(); k += kLanes) {
    draws().normals(key, positions.data() + k, out.data() + k);
  }
  if (k < positions.size()) {
    std::array<int32_t, kLanes> last{};
    std::array<float, kLanes> drawn{};
    std::ranges::copy(positions.subspan(k), last.begin());
    draws().normals(key, last.data(), drawn.data());
    std::copy_n(drawn.begin(), positions.size() - k, out.begin() + static_cast<int64_t>(k));
  }
}

std::array<float, 2> normal_pair(uint32_t a, uint32_t b) {
  float pair[kLanes];
  box_muller(Lanes{} + a, Lanes{} + b, Lanes{0, 1}, pair);
  return {pair[0], pair[1]};
}

}  // namespace espalier
