// Cross-entropy and divergence from a teacher, one block per row: both maxima, the sums, then the
// gradient. The second and third pass find the row in the L2 cache. A target outside the row makes
// its loss and gradient NaN.
#include "src/kernels/cuda/simt/math.h"
#include "src/kernels/cuda/simt/reduce.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/rules/softmax.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

using rules::DistilledRow;

struct Distilled {
  const float *logits, *teacher;
  Elements dlogits;
  const int32_t* targets;
  float *losses, *teacher_losses;
  int cols;
  int64_t stride, teacher_stride, dstride;
  rules::Distilling by;
};

constexpr int kThreads = 512;

__device__ __forceinline__ float gradient_of(const DistilledRow& row,
                                             const rules::DistilledLoss& loss, float inverse,
                                             float x, float y) {
  return loss.own * Math::exponential(x - row.top) +
         (loss.warm * Math::exponential((x - row.top) * inverse) -
          loss.teacher * Math::exponential((y - row.teacher_top) * inverse));
}

__global__ void __launch_bounds__(kThreads, 2) distillation_row(Distilled args) {
  const int64_t number = blockIdx.x;
  const auto first = static_cast<int>(threadIdx.x);
  const auto step = static_cast<int>(blockDim.x);
  const float* x = args.logits + number * args.stride;
  const float* y = args.teacher + number * args.teacher_stride;
  const int64_t target = args.targets[number];
  const bool known = target >= 0 && target < args.cols;
  const float logit = known ? x[target] : not_a_number();
  const float inverse = 1.0F / args.by.temperature;
  DistilledRow row;
  for (int c = first; c < args.cols; c += step) {
    row.top = fmaxf(row.top, x[c]);
    row.teacher_top = fmaxf(row.teacher_top, y[c]);
  }
  row.top = block_max(row.top, -kLargest);
  row.teacher_top = block_max(row.teacher_top, -kLargest);
  for (int c = first; c < args.cols; c += step) {
    const float teacher = Math::exponential((y[c] - row.teacher_top) * inverse);
    row.sum += Math::exponential(x[c] - row.top);
    row.warm_sum += Math::exponential((x[c] - row.top) * inverse);
    row.teacher_sum += teacher;
    row.divergence += teacher * rules::distance_between(row, inverse, x[c], y[c]);
  }
  row.sum = block_sum(row.sum);
  row.warm_sum = block_sum(row.warm_sum);
  row.teacher_sum = block_sum(row.teacher_sum);
  row.divergence = block_sum(row.divergence);  // has a barrier: the row may be overwritten now
  const auto loss = rules::distilled_loss<Math>(row, logit, args.by);
  if (threadIdx.x == 0) {
    args.losses[number] = loss.loss;
    args.teacher_losses[number] = loss.teacher_loss;
  }
  const Elements dlogits = elements_from(args.dlogits, number * args.dstride);
  for (int c = first; c < args.cols; c += step) {
    const float all = gradient_of(row, loss, inverse, x[c], y[c]);
    store(dlogits, c, c == target ? all - loss.target : all);
  }
}

}  // namespace

void distillation(Stream& stream, const DistillationArgs& args) {
  const int64_t cols = args.logits.cols();
  const Distilled distilled{.logits = static_cast<const float*>(args.logits.data),
                            .teacher = static_cast<const float*>(args.teacher.data),
                            .dlogits = elements(args.dlogits),
                            .targets = static_cast<const int32_t*>(args.targets.data),
                            .losses = static_cast<float*>(args.losses.data),
                            .teacher_losses = static_cast<float*>(args.teacher_losses.data),
                            .cols = static_cast<int>(cols),
                            .stride = args.logits.stride,
                            .teacher_stride = args.teacher.stride,
                            .dstride = args.dlogits.stride,
                            .by = {args.weight, args.temperature, args.scale}};
  launch(distillation_row,
         {.name = "distillation",
          .grid = blocks_for(args.logits.rows(), 1),
          .block = threads_for_row(cols, kThreads)},
         stream, distilled);
}

}  // namespace espalier::kernels::ESPALIER_GPU
