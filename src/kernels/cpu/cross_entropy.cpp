// Softmax and cross-entropy by row, in parts that stay in L1: a running maximum and a running sum of
// exponentials (as in online softmax), then one pass that writes the gradient.
#include <cfloat>

#include "src/kernels/cpu/loops.h"
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
void one_row(const CrossEntropyArgs& args, int64_t row) {
  const int64_t cols = args.logits.cols();
  const T* x = row_of<T>(args.logits, row);
  const int32_t target = elements<int32_t>(args.targets)[row];
  const float chosen = load(x + target);
  const Normaliser total = normaliser_of(x, cols);
  elements<float>(args.losses)[row] = (total.top - chosen) + __builtin_logf(total.sum);
  if (!args.dlogits) {
    return;
  }
  const float at_target = args.scale * (exp_below(chosen - total.top) / total.sum - 1.0F);
  with_type(args.dlogits.dtype, [&](auto type) {
    auto* dx = row_of<decltype(type)>(args.dlogits, row);
    gradient_of(x, total, args.scale, cols, dx);
    store(dx + target, at_target);
  });
}

}  // namespace

void cross_entropy(Stream& stream, const CrossEntropyArgs& args) {
  verify(args);
  cpu::require_ids_below("target", args.targets, args.logits.cols());
  with_type(args.logits.dtype, [&](auto type) {
    for_rows(stream.threads(), args.logits.rows(), args.logits.cols(),
             [&](int64_t row) { one_row<decltype(type)>(args, row); });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
