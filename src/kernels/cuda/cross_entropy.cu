// Softmax and cross-entropy, a block a row: one pass for the running maximum and sum (online
// softmax), one for the gradient, which finds the row in the L2 cache. Rows of odd length begin
// where no quad is aligned: their first elements go alone. A target outside the row makes its loss
// and gradient NaN.
#include "src/kernels/cuda/reduce.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr float kLog2E = 1.44269504F;

struct Loss {
  Elements logits, dlogits;  ///< dlogits null: no gradient
  const int32_t* targets;
  float* losses;
  int64_t cols, stride, dstride;
  float scale;
};

/// The softmax of a row is exp(x - top) / sum.
struct Normaliser {
  float top = -FLT_MAX;  ///< finite, so that -inf logits give exp(-inf) = 0, not NaN
  float sum = 0;
};

__device__ __forceinline__ float exponential(float x) { return exp2f(x * kLog2E); }

__device__ __forceinline__ void meet(Normaliser& total, const Quad& q, int64_t count) {
  float top = total.top;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    top = k < count ? fmaxf(top, q.x[k]) : top;
  }
  float sum = total.sum * exponential(total.top - top);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    sum += k < count ? exponential(q.x[k] - top) : 0.0F;
  }
  total = {top, sum};
}

/// Of all threads together.
__device__ __forceinline__ Normaliser joined(const Normaliser& own) {
  const float top = block_max(own.top, -FLT_MAX);
  return {top, block_sum(own.sum * exponential(own.top - top))};
}

/// visit(i, count, quad) for this thread's part of a row; quads are aligned but the first and last.
template <class Visit>
__device__ __forceinline__ void for_row(const Elements& row, int64_t cols, const Visit& visit) {
  const auto address = reinterpret_cast<uintptr_t>(row.data);
  const int64_t past = static_cast<int64_t>(row.half() ? address % 8 / 2 : address % 16 / 4);
#pragma unroll 2
  for (int64_t i = 4 * int64_t{threadIdx.x} - past; i < cols; i += 4 * int64_t{blockDim.x}) {
    const int64_t first = most(i, 0);
    const int64_t count = least(cols, i + 4) - first;
    visit(first, count, load_quad(row, first, count));
  }
}

__device__ __forceinline__ Elements row_of(const Elements& all, int64_t first) {
  return {static_cast<char*>(all.data) + first * all.bytes_each(), all.type};
}

__global__ void __launch_bounds__(1024) cross_entropy_row(Loss args) {
  const int64_t row = blockIdx.x;
  const Elements logits = row_of(args.logits, row * args.stride);
  const int64_t target = args.targets[row];
  const bool known = target >= 0 && target < args.cols;
  const float at_target = known ? load(logits, target) : __uint_as_float(0x7fc00000U);
  Normaliser own;
  for_row(logits, args.cols, [&](int64_t, int64_t count, const Quad& q) { meet(own, q, count); });
  const Normaliser total = joined(own);  // from here on the row may be overwritten
  const float distance = total.top - at_target;
  const float loss = distance + logf(total.sum);
  if (threadIdx.x == 0) {
    args.losses[row] = loss;
  }
  if (args.dlogits.data == nullptr) {
    return;
  }
  const Elements dlogits = row_of(args.dlogits, row * args.dstride);
  const float scale = fabsf(loss) <= FLT_MAX ? args.scale : __uint_as_float(0x7fc00000U);
  const float factor = scale / total.sum;
  const float gradient = scale * (exponential(-distance) / total.sum - 1.0F);
  for_row(logits, args.cols, [&](int64_t i, int64_t count, Quad q) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      q.x[k] = i + k == target ? gradient : factor * exponential(q.x[k] - total.top);
    }
    store_quad(dlogits, i, count, q);
  });
}

}  // namespace

void cross_entropy(Stream& stream, const CrossEntropyArgs& args) {
  verify(args);
  const int64_t cols = args.logits.cols();
  const Loss loss{.logits = elements(args.logits),
                  .dlogits = elements(args.dlogits),
                  .targets = static_cast<const int32_t*>(args.targets.data),
                  .losses = static_cast<float*>(args.losses.data),
                  .cols = cols,
                  .stride = args.logits.stride,
                  .dstride = args.dlogits.stride,
                  .scale = args.scale};
  launch(cross_entropy_row,
         {.name = "cross_entropy",
          .grid = blocks_for(args.logits.rows(), 1),
          .block = threads_for_row(divide_up(cols, 4))},
         stream, loss);
}

}  // namespace espalier::kernels::ESPALIER_GPU
