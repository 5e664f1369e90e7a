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

/// Calls body(row, first, n) for parts of at most kBlock columns; `together`: all rows are
/// contiguous.
template <class Body>
void for_row_parts(int threads, const Tensor& x, bool together, const Body& body) {
  const int64_t rows = together ? 1 : x.rows();
  const int64_t cols = together ? x.count() : x.cols();
  const int64_t parts = divide_up(cols, kBlock);
  for_blocks(threads, rows * parts, x.count(), [&](int64_t i) {
    const int64_t first = i % parts * kBlock;
    body(i / parts, first, least(kBlock, cols - first));
  });
}

template <class F, class T>
void gate(Stream& stream, const GatedActivationArgs& args) {
  const bool together = args.gate.contiguous() && args.up.contiguous() && args.y.contiguous();
  for_row_parts(stream.threads(), args.gate, together, [&](int64_t row, int64_t first, int64_t n) {
    const T* gate = row_of<T>(args.gate, row) + first;
    const T* up = row_of<T>(args.up, row) + first;
    T* y = row_of<T>(args.y, row) + first;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      store(y + i, F::value(load(gate + i)) * load(up + i));
    }
  });
}

template <class F, class T>
void gate_backward(Stream& stream, const GatedActivationBackwardArgs& args) {
  const bool together = args.gate.contiguous() && args.up.contiguous() && args.dy.contiguous() &&
                        args.dgate.contiguous() && args.dup.contiguous();
  for_row_parts(stream.threads(), args.gate, together, [&](int64_t row, int64_t first, int64_t n) {
    const T* dy = row_of<T>(args.dy, row) + first;
    const T* gate = row_of<T>(args.gate, row) + first;
    const T* up = row_of<T>(args.up, row) + first;
    T* dgate = row_of<T>(args.dgate, row) + first;
    T* dup = row_of<T>(args.dup, row) + first;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const float d = load(dy + i);
      const float factor = load(up + i);
      const rules::Activated at = F::both(load(gate + i));
      store(dgate + i, d * factor * at.slope);
      store(dup + i, d * at.value);
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

void gated_activation(Stream& stream, const GatedActivationArgs& args) {
  with_function(args.kind, [&](auto function) {
    with_type(args.gate.dtype,
              [&](auto type) { gate<decltype(function), decltype(type)>(stream, args); });
  });
}

void gated_activation_backward(Stream& stream, const GatedActivationBackwardArgs& args) {
  with_function(args.kind, [&](auto function) {
    with_type(args.gate.dtype,
              [&](auto type) { gate_backward<decltype(function), decltype(type)>(stream, args); });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
