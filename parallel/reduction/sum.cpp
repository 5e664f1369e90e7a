#include "parallel/reduction/sum.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace espalier::parallel {

namespace {

// x + y, where `out` may be x or y, for the types that the library sums.
template <class X, class Y, class Out>
[[gnu::always_inline]] inline void add_loop(const X* x, const Y* y, Out* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float sum = to_float(x[i]) + to_float(y[i]);
    out[i] = from_float<Out>(sum);
  }
}

// The library is built for the oldest x86-64; the same loop is also compiled for newer vector units
// and selected at run time. (Not by target_clones: its resolver runs before the sanitizers are
// initialised.) Other processors have one loop.
template <class X, class Y, class Out>
struct Add {
  using Function = void(const X*, const Y*, Out*, int64_t);

  static void baseline(const X* x, const Y* y, Out* out, int64_t n) { add_loop(x, y, out, n); }
#ifdef __x86_64__
  [[gnu::target("avx2")]] static void avx2(const X* x, const Y* y, Out* out, int64_t n) {
    add_loop(x, y, out, n);
  }
  [[gnu::target("avx512f,avx512bw")]] static void avx512(const X* x, const Y* y, Out* out,
                                                         int64_t n) {
    add_loop(x, y, out, n);
  }

  static Function* best() {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) {
      return avx512;
    }
    return __builtin_cpu_supports("avx2") ? avx2 : baseline;
  }
#else
  static Function* best() { return baseline; }
#endif
  static void run(const X* x, const Y* y, Out* out, int64_t n) {
    static Function* const function = best();
    function(x, y, out, n);
  }
};

template <class T>
void sum(std::span<const Tensor> x, const Tensor& out) {
  const int64_t count = out.count();
  T* const result = out.get<T>();
  if (x.size() == 1) {
    std::memmove(result, x[0].get<T>(), out.bytes());
    return;
  }
  if (x.size() == 2) {
    Add<T, T, T>::run(x[0].get<T>(), x[1].get<T>(), result, count);
    return;
  }
  // `out` may be any of the inputs, so a block is summed in a local array (in L1) until its last
  // addition. That addition reads each input element before it writes the same position.
  constexpr int64_t kBlock = 2048;
  std::array<float, kBlock> sums;
  const std::span<const Tensor> middle = x.subspan(2, x.size() - 3);
  for (int64_t at = 0; at < count; at += kBlock) {
    const int64_t n = std::min(kBlock, count - at);
    Add<T, T, float>::run(x[0].get<T>() + at, x[1].get<T>() + at, sums.data(), n);
    for (const Tensor& next : middle) {
      Add<float, T, float>::run(sums.data(), next.get<T>() + at, sums.data(), n);
    }
    Add<float, T, T>::run(sums.data(), x.back().get<T>() + at, result + at, n);
  }
}

}  // namespace

void sum_in_order(std::span<const Tensor> x, const Tensor& out) {
  require(!x.empty(), "something to add", x.size());
  for (const Tensor& one : x) {
    require(one.dtype == out.dtype && one.count() == out.count(), "arrays of one type and size",
            name_of(one.dtype), name_of(out.dtype), one.count(), out.count());
  }
  if (out.count() == 0) {
    return;
  }
  with_number(out.dtype, [&]<class Number>(Number) { sum<Number>(x, out); });
}

}  // namespace espalier::parallel
