// Softmax and cross-entropy, one block per row. The first pass computes the running maximum and sum
// (online softmax), the second the gradient; it finds the row in the L2 cache. A row of odd length
// may begin at an unaligned quad: its first elements are processed one by one. A target outside the
// row makes its loss and gradient NaN.
#include "src/kernels/cuda/simt/math.h"
#include "src/kernels/cuda/simt/reduce.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/rules/softmax.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

using rules::Normaliser;

struct Loss {
  Elements logits, dlogits;  ///< dlogits null: do not compute the gradient
  const int32_t* targets;
  float* losses;
  float* target_ranks;  ///< null: do not count
  int cols;
  int64_t stride, dstride;
  float scale, smoothing;
};

/// The part of a row that a thread loads before it uses any of it: quad j is at column i + j step
/// and has `count` elements. kWhole: all quads are complete and aligned.
template <int kQuads, bool kWhole>
struct Quads {
  int i, step, count;
  Quad q[kQuads];

  __device__ __forceinline__ Quads(const Elements& row, int first, int each, int there)
      : i(first), step(each), count(there) {
    RawQuad raw[kQuads];
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      raw[j] = load_raw<kWhole>(row, i + j * step, count);
    }
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      q[j] = quad_of(row.type, raw[j]);
    }
  }
  __device__ __forceinline__ void store(const Elements& row) const {
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      store_quad<kWhole>(row, i + j * step, count, q[j]);
    }
  }
  __device__ __forceinline__ bool has(int k) const { return kWhole || k < count; }
};

/// Adds a part. The sum is rescaled to a new maximum once for the whole part.
template <class Part>
__device__ __forceinline__ void meet(Normaliser& total, const Part& part) {
  float top = total.top;
#pragma unroll
  for (const Quad& q : part.q) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      top = part.has(k) ? fmaxf(top, q.x[k]) : top;
    }
  }
  float sum = total.sum * Math::exponential(total.top - top);
#pragma unroll
  for (const Quad& q : part.q) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      sum += part.has(k) ? Math::exponential(q.x[k] - top) : 0.0F;
    }
  }
  total = {top, sum};
}

/// Over a thread's elements: the sum for label smoothing, and the number before the target.
struct More {
  float sum = 0;
  int before = 0;

  template <class Part>
  __device__ __forceinline__ void add(const Part& part, float logit, int64_t target) {
#pragma unroll
    for (int j = 0; j < static_cast<int>(sizeof part.q / sizeof part.q[0]); ++j) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (part.has(k)) {
          const float x = part.q[j].x[k];
          sum += x;
          const bool earlier = part.i + j * part.step + k < target;
          before += !(x <= logit) || (x == logit && earlier) ? 1 : 0;
        }
      }
    }
  }
};

/// Joins the normalisers of all threads of the block.
__device__ __forceinline__ Normaliser joined(const Normaliser& own) {
  const float top = block_max(own.top, -kLargest);
  return {top, block_sum(own.sum * Math::exponential(own.top - top))};
}

/// Calls visit(Quads) for this thread's parts of a row. If the row begins at an unaligned quad, its
/// first elements are visited singly.
template <class Visit>
__device__ __forceinline__ void for_row(const Elements& row, int cols, const Visit& visit) {
  constexpr int kTogether = 4;
  const auto address = reinterpret_cast<uintptr_t>(row.data);
  const auto past = static_cast<int>(row.half() ? address % 8 / 2 : address % 16 / 4);
  const auto step = static_cast<int>(4 * blockDim.x);
  int i = static_cast<int>(4 * threadIdx.x) - past;
  for (; past == 0 && i + (kTogether - 1) * step + 4 <= cols; i += kTogether * step) {
    visit(Quads<kTogether, true>(row, i, step, 4));
  }
  for (; i < cols; i += step) {
    const int first = i < 0 ? 0 : i;
    const int end = i + 4 < cols ? i + 4 : cols;
    visit(Quads<1, false>(row, first, step, end - first));
  }
}

/// Two blocks fit an SM: one loads while the other is between its passes. The L2 cache holds the
/// rows of all blocks.
constexpr int kThreads = 512;

/// kMore: with label smoothing or ranks of targets.
template <bool kMore>
__global__ void __launch_bounds__(kThreads, 2) cross_entropy_row(Loss args) {
  const int64_t row = blockIdx.x;
  const Elements logits = elements_from(args.logits, row * args.stride);
  const int64_t target = args.targets[row];
  const bool known = target >= 0 && target < args.cols;
  const float at_target = known ? load(logits, target) : not_a_number();
  Normaliser own;
  More more;
  for_row(logits, args.cols, [&](const auto& part) {
    meet(own, part);
    if (kMore) {
      more.add(part, at_target, target);
    }
  });
  const Normaliser total = joined(own);  // has a barrier: the row may be overwritten from here on
  rules::Smoothing smoothing;
  if (kMore) {
    const float before = block_sum(static_cast<float>(more.before));  // exact: below 2^24
    smoothing = {args.smoothing, static_cast<float>(args.cols), block_sum(more.sum)};
    if (threadIdx.x == 0 && args.target_ranks != nullptr) {
      args.target_ranks[row] = before;
    }
  }
  const auto row_loss = rules::row_loss<Math>(total, at_target, args.scale, smoothing);
  if (threadIdx.x == 0) {
    args.losses[row] = row_loss.loss;
  }
  if (args.dlogits.data == nullptr) {
    return;
  }
  const Elements dlogits = elements_from(args.dlogits, row * args.dstride);
  for_row(logits, args.cols, [&](auto part) {
#pragma unroll
    for (Quad& q : part.q) {
#pragma unroll
      for (float& x : q.x) {
        x = row_loss.factor * Math::exponential(x - total.top) - row_loss.even;
      }
    }
    part.store(dlogits);
  });
  __syncthreads();
  if (threadIdx.x == 0 && known) {
    store(dlogits, target, row_loss.at_target);
  }
}

}  // namespace

void cross_entropy(Stream& stream, const CrossEntropyArgs& args) {
  const int64_t cols = args.logits.cols();
  const Loss loss{.logits = elements(args.logits),
                  .dlogits = elements(args.dlogits),
                  .targets = static_cast<const int32_t*>(args.targets.data),
                  .losses = static_cast<float*>(args.losses.data),
                  .target_ranks = static_cast<float*>(args.target_ranks.data),
                  .cols = static_cast<int>(cols),
                  .stride = args.logits.stride,
                  .dstride = args.dlogits.stride,
                  .scale = args.scale,
                  .smoothing = args.smoothing};
  const bool more = args.smoothing > 0 || args.target_ranks;
  launch(more ? cross_entropy_row<true> : cross_entropy_row<false>,
         {.name = "cross_entropy",
          .grid = blocks_for(args.logits.rows(), 1),
          .block = threads_for_row(divide_up(cols, 4), kThreads)},
         stream, loss);
}

}  // namespace espalier::kernels::ESPALIER_GPU
