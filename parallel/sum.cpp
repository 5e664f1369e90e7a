#include "parallel/sum.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace espalier::parallel {

namespace {

using Add = void(const float* a, const float* b, float* out, int64_t count);

[[gnu::always_inline]] inline void add_loop(const float* a, const float* b, float* out,
                                            int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = a[i] + b[i];
  }
}

// The library is built for the oldest x86-64; the same loop is compiled for newer vector units and
// picked at run time. (Not by target_clones: its resolver runs before the sanitizers are ready.)
void add_baseline(const float* a, const float* b, float* out, int64_t n) { add_loop(a, b, out, n); }
[[gnu::target("avx2")]] void add_avx2(const float* a, const float* b, float* out, int64_t n) {
  add_loop(a, b, out, n);
}
[[gnu::target("avx512f")]] void add_avx512(const float* a, const float* b, float* out, int64_t n) {
  add_loop(a, b, out, n);
}

Add* best_add() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) {
    return add_avx512;
  }
  return __builtin_cpu_supports("avx2") ? add_avx2 : add_baseline;
}

}  // namespace

void sum_in_order(std::span<const float* const> x, float* out, int64_t count) {
  static Add* const add = best_add();
  if (x.size() == 2) {
    add(x[0], x[1], out, count);
    return;
  }
  // `out` may be any of the inputs, so a block is summed aside (in L1) before it is written.
  constexpr int64_t kBlock = 2048;
  std::array<float, kBlock> sum;
  for (int64_t at = 0; at < count; at += kBlock) {
    const int64_t n = std::min(kBlock, count - at);
    std::memcpy(sum.data(), x[0] + at, static_cast<size_t>(n) * sizeof(float));
    for (const float* next : x.subspan(1)) {
      add(sum.data(), next + at, sum.data(), n);
    }
    std::memcpy(out + at, sum.data(), static_cast<size_t>(n) * sizeof(float));
  }
}

}  // namespace espalier::parallel
