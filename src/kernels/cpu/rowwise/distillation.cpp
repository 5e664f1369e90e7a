// Cross-entropy and divergence from a teacher by row. A row is processed in parts that stay in L1:
// first both maxima, then the sums, then the gradient.
#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/simd/reduce.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/rules/softmax.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kPart = 512;

using rules::DistilledRow;

/// Terms of a part of a row.
struct Part {
  alignas(64) float own[kPart], warm[kPart], teacher[kPart], divergence[kPart];
};

void add_part(const float* x, const float* y, int64_t n, float inverse, Part& part,
              DistilledRow& row) {
  const DistilledRow tops = row;
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    part.own[c] = exp_below(x[c] - tops.top);
    part.warm[c] = exp_below((x[c] - tops.top) * inverse);
    part.teacher[c] = exp_below((y[c] - tops.teacher_top) * inverse);
    part.divergence[c] = part.teacher[c] * rules::distance_between(tops, inverse, x[c], y[c]);
  }
  const auto same = [](auto e) { return e; };
  row.sum += sum_over(part.own, n, same);
  row.warm_sum += sum_over(part.warm, n, same);
  row.teacher_sum += sum_over(part.teacher, n, same);
  row.divergence += sum_over(part.divergence, n, same);
}

template <class D>
void row_gradient(const float* x, const float* y, int64_t n, float inverse, const DistilledRow& row,
                  const rules::DistilledLoss& loss, D* dx) {
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    store(dx + c, loss.own * exp_below(x[c] - row.top) +
                      (loss.warm * exp_below((x[c] - row.top) * inverse) -
                       loss.teacher * exp_below((y[c] - row.teacher_top) * inverse)));
  }
}

template <class D>
void distil_row(const DistillationArgs& args, int64_t number, D* dx) {
  const int64_t cols = args.logits.cols();
  const float inverse = 1.0F / args.temperature;
  const auto* x = row_of<float>(args.logits, number);
  const auto* y = row_of<float>(args.teacher, number);
  DistilledRow row;
  row.top = maximum_over(x, cols, row.top);
  row.teacher_top = maximum_over(y, cols, row.teacher_top);
  Part part;
  for (int64_t first = 0; first < cols; first += kPart) {
    add_part(x + first, y + first, least(kPart, cols - first), inverse, part, row);
  }
  const int32_t target = elements<int32_t>(args.targets)[number];
  const float logit = x[target];
  const auto loss = rules::distilled_loss<Math>(
      row, logit, {.weight = args.weight, .temperature = args.temperature, .scale = args.scale});
  elements<float>(args.losses)[number] = loss.loss;
  elements<float>(args.teacher_losses)[number] = loss.teacher_loss;
  const float teacher_logit = y[target];
  row_gradient(x, y, cols, inverse, row, loss, dx);  // may overwrite x
  float at_target = 0;
  row_gradient(&logit, &teacher_logit, 1, inverse, row, loss, &at_target);
  store(dx + target, at_target - loss.target);
}

}  // namespace

void distillation(Stream& stream, const DistillationArgs& args) {
  cpu::require_ids_below("target", args.targets, args.logits.cols());
  with_type(args.dlogits.dtype, [&](auto type) {
    for_rows(stream.threads(), args.logits.rows(), args.logits.cols(), [&](int64_t row) {
      distil_row(args, row, row_of<decltype(type)>(args.dlogits, row));
    });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
