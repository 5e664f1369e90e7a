// LayerNorm, a block a row; a thread keeps kHeld quads of its row in registers and reads what is
// more again. The backward pass gives a block several rows: the block's share of dweight and dbias
// stays in shared memory until they are done.
#include "src/kernels/cuda/combine.h"
#include "src/kernels/cuda/reduce.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr float kEpsilon = 1e-5F;
constexpr int kHeld = 4;
constexpr int kBackwardThreads = 512;  ///< more would leave too few registers for what is held

struct Forward {
  const float* x;
  Elements weight, bias, y;
  float *mean, *rstd;
  int64_t cols, x_stride, y_stride;
};

/// Of the first `count` of a quad.
__device__ __forceinline__ float quad_sum(const Quad& q) {
  return (q.x[0] + q.x[1]) + (q.x[2] + q.x[3]);
}
__device__ __forceinline__ float quad_squares(const Quad& q, float centre, int64_t count) {
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float distance = k < count ? q.x[k] - centre : 0.0F;
    sum += distance * distance;
  }
  return sum;
}

/// visit(i, quad at column i) for this thread's quads of the row.
template <class Visit>
__device__ __forceinline__ void for_quads(const Quad (&held)[kHeld], const float* row, int64_t cols,
                                          const Visit& visit) {
  const int64_t step = 4 * int64_t{blockDim.x};
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int64_t i = 4 * int64_t{threadIdx.x} + j * step;
    if (i < cols) {
      visit(i, held[j]);
    }
  }
  for (int64_t i = 4 * int64_t{threadIdx.x} + kHeld * step; i < cols; i += step) {
    visit(i, load_quad(row, i, cols - i));
  }
}

__global__ void __launch_bounds__(1024) layernorm_row(Forward args) {
  const int64_t row = blockIdx.x;
  const int64_t cols = args.cols;
  const float* x = args.x + row * args.x_stride;
  Quad held[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int64_t i = 4 * (int64_t{threadIdx.x} + j * int64_t{blockDim.x});
    held[j] = load_quad(x, i, i < cols ? cols - i : 0);
  }
  const auto width = static_cast<float>(cols);
  float sum = 0;
  for_quads(held, x, cols, [&](int64_t, const Quad& q) { sum += quad_sum(q); });
  const float mean = block_sum(sum) / width;
  float squares = 0;
  for_quads(held, x, cols,
            [&](int64_t i, const Quad& q) { squares += quad_squares(q, mean, cols - i); });
  const float rstd = 1.0F / sqrtf(block_sum(squares) / width + kEpsilon);
  const Elements y = args.y;
  for_quads(held, x, cols, [&](int64_t i, const Quad& q) {
    const Quad weight = load_quad(args.weight, i, cols - i);
    const Quad bias = load_quad(args.bias, i, cols - i);
    Quad out;
    for (int k = 0; k < 4; ++k) {
      out.x[k] = (q.x[k] - mean) * rstd * weight.x[k] + bias.x[k];
    }
    store_quad(y, row * args.y_stride + i, cols - i, out);
  });
  if (threadIdx.x == 0) {
    args.mean[row] = mean;
    args.rstd[row] = rstd;
  }
}

struct Backward {
  Elements dy, weight;
  const float *x, *mean, *rstd;
  float *dx, *shares;
  int64_t rows, cols, rows_each, dy_stride, x_stride, dx_stride;
  bool in_shared;  ///< shares have room in shared memory
};

/// Quads of one row at column i.
struct RowQuads {
  Quad dy, x, dx;
};

__device__ __forceinline__ RowQuads read_quads(const Backward& args, int64_t row, int64_t i) {
  const int64_t count = i < args.cols ? args.cols - i : 0;
  return {load_quad(args.dy, row * args.dy_stride + i, count),
          load_quad(args.x, row * args.x_stride + i, count),
          load_quad(args.dx, row * args.dx_stride + i, count)};
}

/// Sums of g = dy weight and of g times the normalised x.
struct Projection {
  float centre = 0, slope = 0;
};

__device__ __forceinline__ void project(const Backward& args, const RowQuads& q, int64_t i,
                                        float mean, float rstd, Projection& sums) {
  const Quad weight = load_quad(args.weight, i, args.cols - i);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float g = q.dy.x[k] * weight.x[k];
    sums.centre += g;
    sums.slope += i + k < args.cols ? g * ((q.x.x[k] - mean) * rstd) : 0.0F;
  }
}

struct RowNumbers {
  float mean, rstd, centre, slope;
};

/// dx of a quad; its part of dweight and dbias goes to the block's share.
__device__ __forceinline__ void give(const Backward& args, const RowQuads& q, int64_t row,
                                     int64_t i, const RowNumbers& of, float* share) {
  const Quad weight = load_quad(args.weight, i, args.cols - i);
  Quad dx = q.dx;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float normalised = (q.x.x[k] - of.mean) * of.rstd;
    dx.x[k] += of.rstd * (q.dy.x[k] * weight.x[k] - of.centre - normalised * of.slope);
    if (i + k < args.cols) {
      share[i + k] += q.dy.x[k] * normalised;
      share[args.cols + i + k] += q.dy.x[k];
    }
  }
  store_quad(args.dx, row * args.dx_stride + i, args.cols - i, dx);
}

__device__ void backward_row(const Backward& args, int64_t row, float* share) {
  const int64_t cols = args.cols;
  const int64_t first = 4 * int64_t{threadIdx.x};
  const int64_t step = 4 * int64_t{blockDim.x};
  const float mean = args.mean[row];
  const float rstd = args.rstd[row];
  RowQuads held[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    held[j] = read_quads(args, row, first + j * step);
  }
  Projection sums;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    if (first + j * step < cols) {
      project(args, held[j], first + j * step, mean, rstd, sums);
    }
  }
  for (int64_t i = first + kHeld * step; i < cols; i += step) {
    project(args, read_quads(args, row, i), i, mean, rstd, sums);
  }
  const auto width = static_cast<float>(cols);
  const RowNumbers numbers{mean, rstd, block_sum(sums.centre) / width,
                           block_sum(sums.slope) / width};
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    if (first + j * step < cols) {
      give(args, held[j], row, first + j * step, numbers, share);
    }
  }
  for (int64_t i = first + kHeld * step; i < cols; i += step) {
    give(args, read_quads(args, row, i), row, i, numbers, share);
  }
}

/// A thread owns the same columns of every row, so that its share needs no barrier.
__global__ void __launch_bounds__(kBackwardThreads) layernorm_rows_backward(Backward args) {
  const int64_t cols = args.cols;
  const int64_t step = 4 * int64_t{blockDim.x};
  float* out = args.shares + blockIdx.x * 2 * cols;
  float* share = args.in_shared ? dynamic_shared<float>() : out;
  for (int64_t i = 4 * int64_t{threadIdx.x}; i < cols; i += step) {
    store_quad(share, i, cols - i, Quad{});
    store_quad(share, cols + i, cols - i, Quad{});
  }
  const int64_t end = least(args.rows, (blockIdx.x + 1) * args.rows_each);
  for (int64_t row = blockIdx.x * args.rows_each; row < end; ++row) {
    backward_row(args, row, share);
  }
  for (int64_t i = 4 * int64_t{threadIdx.x}; i < cols && args.in_shared; i += step) {
    store_quad(out, i, cols - i, load_quad(share, i, cols - i));
    store_quad(out, cols + i, cols - i, load_quad(share, cols + i, cols - i));
  }
}

}  // namespace

void layernorm(Stream& stream, const LayerNormArgs& args) {
  verify(args);
  const int64_t cols = args.x.cols();
  const Forward forward{.x = static_cast<const float*>(args.x.data),
                        .weight = elements(args.weight),
                        .bias = elements(args.bias),
                        .y = elements(args.y),
                        .mean = static_cast<float*>(args.mean.data),
                        .rstd = static_cast<float*>(args.rstd.data),
                        .cols = cols,
                        .x_stride = args.x.stride,
                        .y_stride = args.y.stride};
  launch(layernorm_row,
         {.name = "layernorm",
          .grid = blocks_for(args.x.rows(), 1),
          .block = threads_for_row(divide_up(cols, 4))},
         stream, forward);
}

void layernorm_backward(Stream& stream, const LayerNormBackwardArgs& args) {
  verify(args);
  constexpr int64_t kParts = 512;
  constexpr size_t kSharedBytes = size_t{96}
                                  << 10;  // every architecture that we compile for has it
  const int64_t rows = args.x.rows();
  const int64_t cols = args.x.cols();
  const int64_t together = divide_up(rows, kParts);
  const int64_t parts = rows == 0 ? 0 : divide_up(rows, together);
  const size_t share_bytes = static_cast<size_t>(2 * cols) * sizeof(float);
  auto* shares = reinterpret_cast<float*>(
      stream.workspace(static_cast<size_t>(parts) * share_bytes + sizeof(float)));
  const Backward backward{.dy = elements(args.dy),
                          .weight = elements(args.weight),
                          .x = static_cast<const float*>(args.x.data),
                          .mean = static_cast<const float*>(args.mean.data),
                          .rstd = static_cast<const float*>(args.rstd.data),
                          .dx = static_cast<float*>(args.dx.data),
                          .shares = shares,
                          .rows = rows,
                          .cols = cols,
                          .rows_each = together,
                          .dy_stride = args.dy.stride,
                          .x_stride = args.x.stride,
                          .dx_stride = args.dx.stride,
                          .in_shared = share_bytes <= kSharedBytes};
  launch(layernorm_rows_backward,
         {.name = "layernorm_backward",
          .grid = blocks_for(parts, 1),
          .block = threads_for_row(divide_up(cols, 4), kBackwardThreads),
          .shared_bytes = backward.in_shared ? share_bytes : 0},
         stream, backward);
  combine_shares(stream, {shares, parts, 2 * cols, cols, elements(args.dweight), args.accumulate});
  combine_shares(stream,
                 {shares + cols, parts, 2 * cols, cols, elements(args.dbias), args.accumulate});
}

}  // namespace espalier::kernels::ESPALIER_GPU
