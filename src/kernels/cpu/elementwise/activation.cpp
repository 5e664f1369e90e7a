#include "src/kernels/cpu/elementwise/activation.h"

#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

template <class F, class T>
void apply(Stream& stream, const ActivationArgs& args) {
  const T* x = elements<T>(args.x);
  T* y = elements<T>(args.y);
  for_ranges(stream.threads(), args.x.count(), kBlock, [&](int64_t first, int64_t n) {
#pragma omp simd
    for (int64_t i = first; i < first + n; ++i) {
      store(y + i, F::value(load(x + i)));
    }
  });
}

template <class F, class T>
void apply_backward(Stream& stream, const ActivationBackwardArgs& args) {
  const T* dy = elements<T>(args.dy);
  const T* x = elements<T>(args.x);
  T* dx = elements<T>(args.dx);
  for_ranges(stream.threads(), args.x.count(), kBlock, [&](int64_t first, int64_t n) {
#pragma omp simd
    for (int64_t i = first; i < first + n; ++i) {
      store(dx + i, load(dy + i) * F::slope(load(x + i)));
    }
  });
}

}  // namespace

void activation(Stream& stream, const ActivationArgs& args) {
  with_function(args.kind, [&](auto function) {
    with_type(args.x.dtype,
              [&](auto type) { apply<decltype(function), decltype(type)>(stream, args); });
  });
}

void activation_backward(Stream& stream, const ActivationBackwardArgs& args) {
  with_function(args.kind, [&](auto function) {
    with_type(args.x.dtype,
              [&](auto type) { apply_backward<decltype(function), decltype(type)>(stream, args); });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
