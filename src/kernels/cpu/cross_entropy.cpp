// Softmax and cross-entropy by row, in parts that stay in L1: a running maximum and a running sum of
// exponentials (as in online softmax), then one pass that writes the gradient.
#include <cfloat>

#include "src/kernels/cpu/loops.h"
#include "src/kernels/cpu/reduce.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kPart = 2048;

/// The softmax of a row is exp(x - top) / sum.
struct Normaliser {
  float top, sum;
};

template <class T>
Normaliser normaliser_of(const T* x, int64_t n) {
  Normaliser total{-FLT_MAX, 0};  // finite, so that -inf logits give exp(-inf) = 0, not NaN
  for (int64_t first = 0; first < n; first += kPart) {
    const int64_t count = least(kPart, n - first);
    const auto logit = [&](int64_t c) { return load(x + first + c); };
    const float top = maximum_of(count, total.top, logit);
    const float sum = sum_of(count, [&](int64_t c) { return exp_below(logit(c) - top); });
    total.sum = total.sum * exp_below(total.top - top) + sum;
    total.top = top;
  }
  return total;
}

template <class T, class D>
void gradient_of(const T* x, const Normaliser& total, float scale, int64_t n, D* dx) {
  const float factor = scale / total.sum;
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    store(dx + c, factor * exp_below(load(x + c) - total.top));
  }
}

template <class T>
void write_gradient(const CrossEntropyArgs& args, int64_t row, const Normaliser& total) {
  const T* x = row_of<T>(args.logits, row);
  const int32_t target = elements<int32_t>(args.targets)[row];
  const float probability = exp_below(load(x + target) - total.top) / total.sum;
  with_type(args.dlogits.dtype, [&](auto type) {
    auto* dx = row_of<decltype(type)>(args.dlogits, row);
    gradient_of(x, total, args.scale, args.logits.cols(), dx);
    store(dx + target, args.scale * (probability - 1.0F));
  });
}

/// Rows [first, first + n): all normalisers, then all gradients, see kRowGroup.
template <class T>
void some_rows(const CrossEntropyArgs& args, int64_t first, int64_t n) {
  Normaliser totals[kRowGroup];
  for (int64_t i = 0; i < n; ++i) {
    totals[i] = normaliser_of(row_of<T>(args.logits, first + i), args.logits.cols());
  }
  for (int64_t i = 0; i < n; ++i) {
    const int32_t target = elements<int32_t>(args.targets)[first + i];
    const float chosen = load(row_of<T>(args.logits, first + i) + target);
    const float loss = (totals[i].top - chosen) + __builtin_logf(totals[i].sum);
    elements<float>(args.losses)[first + i] = loss;
    if (args.dlogits) {
      write_gradient<T>(args, first + i, totals[i]);
    }
  }
}

}  // namespace

void cross_entropy(Stream& stream, const CrossEntropyArgs& args) {
  verify(args);
  cpu::require_ids_below("target", args.targets, args.logits.cols());
  with_type(args.logits.dtype, [&](auto type) {
    for_row_groups(
        stream.threads(), args.logits.rows(), args.logits.cols(),
        [&](int64_t first, int64_t n) { some_rows<decltype(type)>(args, first, n); });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
