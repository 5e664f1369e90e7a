// LayerNorm by row, and RMSNorm, which is LayerNorm without mean and bias (not kCentred).
//
// - Forward: one warp per row, with up to 8 quads per lane in registers; wide rows have one block
//   each.
// - Backward: a block has several rows; a thread has the same columns of each, and loads the next
//   row's before it waits for the sums of this one. Its shares of dweight and dbias stay in
//   registers until the last row; shares of columns that it does not hold are in shared memory.
//
// Values that are not held in registers are read again.
#include "src/kernels/cuda/rowwise/combine.h"
#include "src/kernels/cuda/simt/reduce.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/rules/norm.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr int kHeld = 4;
constexpr int kBackwardThreads = 256;  ///< with more, the held quads do not fit the registers

/// Blocks of kBackwardThreads that fit an SM's registers when each thread holds so many quads.
constexpr int backward_blocks(int quads) { return quads == 1 ? 4 : quads == 2 ? 2 : 1; }

struct Forward {
  const float* x;
  Elements weight, bias, y;
  float *mean, *rstd;
  int64_t rows, cols, x_stride, y_stride;
  float inverse_width;  ///< 1 / cols
  float epsilon;
  bool whole;  ///< all quads are aligned; rows consist of whole quads
};

__device__ __forceinline__ float quad_sum(const Quad& q) {
  return (q.x[0] + q.x[1]) + (q.x[2] + q.x[3]);
}
/// Sum of squares of the first `count` values of a quad, about `centre`.
template <bool kWhole>
__device__ __forceinline__ float quad_squares(const Quad& q, float centre, int64_t count) {
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float distance = kWhole || k < count ? q.x[k] - centre : 0.0F;
    sum += distance * distance;
  }
  return sum;
}

/// The threads that share a row: a warp or a block.
struct Lanes {
  int64_t first, step;  ///< column of this thread's first quad; distance to its next
  bool warp;

  __device__ __forceinline__ float sum(float value) const {
    return warp ? warp_sum(value) : block_sum(value);
  }
};

/// Calls visit(i, quad at column i) for this thread's quads of the row.
template <bool kWhole, int kQuads, class Visit>
__device__ __forceinline__ void for_quads(const Quad (&held)[kQuads], const float* row,
                                          int64_t cols, const Lanes& lanes, const Visit& visit) {
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    const int64_t i = lanes.first + j * lanes.step;
    if (i < cols) {
      visit(i, held[j]);
    }
  }
  for (int64_t i = lanes.first + kQuads * lanes.step; !lanes.warp && i < cols; i += lanes.step) {
    visit(i, load_quad<kWhole>(row, i, cols - i));
  }
}

template <bool kCentred, bool kWhole, int kQuads>
__device__ __forceinline__ void normalise_row(const Forward& args, int64_t row,
                                              const Lanes& lanes) {
  const int64_t cols = args.cols;
  const float* x = args.x + row * args.x_stride;
  Quad held[kQuads];
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    const int64_t i = lanes.first + j * lanes.step;
    held[j] = i < cols ? load_quad<kWhole>(x, i, cols - i) : Quad{};
  }
  float mean = 0;
  if constexpr (kCentred) {
    float sum = 0;
    for_quads<kWhole>(held, x, cols, lanes, [&](int64_t, const Quad& q) { sum += quad_sum(q); });
    mean = lanes.sum(sum) * args.inverse_width;
  }
  float squares = 0;
  for_quads<kWhole>(held, x, cols, lanes, [&](int64_t i, const Quad& q) {
    squares += quad_squares<kWhole>(q, mean, cols - i);
  });
  const float rstd = quick_inverse_root(lanes.sum(squares) * args.inverse_width + args.epsilon);
  for_quads<kWhole>(held, x, cols, lanes, [&](int64_t i, const Quad& q) {
    const Quad weight = load_quad<kWhole>(args.weight, i, cols - i);
    const Quad bias = kCentred ? load_quad<kWhole>(args.bias, i, cols - i) : Quad{};
    Quad out;
    for (int k = 0; k < 4; ++k) {
      out.x[k] = rules::norm_value<kCentred>(q.x[k], mean, rstd, weight.x[k], bias.x[k]);
    }
    store_quad<kWhole>(args.y, row * args.y_stride + i, cols - i, out);
  });
  if (lanes.first == 0) {
    if constexpr (kCentred) {
      args.mean[row] = mean;
    }
    args.rstd[row] = rstd;
  }
}

constexpr int kWarps = 4;
/// With more, few warps fit the registers of an SM: 16 (rows of 1,600) take 1.4 times as long as a
/// block a row.
constexpr int kQuadsOfLane = 8;

/// For rows of whole quads, at most 32 kQuadsOfLane of them.
template <bool kCentred>
__global__ void __launch_bounds__(32 * kWarps) norm_warps(Forward args) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row < args.rows) {
    normalise_row<kCentred, true, kQuadsOfLane>(args, row, {4 * (threadIdx.x % 32), 128, true});
  }
}

template <bool kCentred>
__global__ void __launch_bounds__(1024) norm_row(Forward args) {
  const Lanes lanes{4 * threadIdx.x, 4 * int64_t{blockDim.x}, false};
  if (args.whole) {
    normalise_row<kCentred, true, kHeld>(args, blockIdx.x, lanes);
  } else {
    normalise_row<kCentred, false, kHeld>(args, blockIdx.x, lanes);
  }
}

struct Backward {
  Elements dy, weight, rounded;
  const float *x, *mean, *rstd;
  float *dx, *shares;
  int64_t rows, cols, rows_each, dy_stride, x_stride, dx_stride, rounded_stride;
  float inverse_width;  ///< 1 / cols
  bool in_shared;       ///< the shares of columns that are not held fit shared memory
  bool whole;           ///< as in Forward
};

/// The quads of one row at column i.
struct RowQuads {
  RawQuad dy;
  Quad x, dx;
};

template <bool kWhole>
__device__ __forceinline__ RowQuads read_quads(const Backward& args, int64_t row, int64_t i) {
  if (i >= args.cols) {
    return {};
  }
  const int64_t count = args.cols - i;
  return {load_raw<kWhole>(args.dy, row * args.dy_stride + i, count),
          load_quad<kWhole>(args.x, row * args.x_stride + i, count),
          load_quad<kWhole>(args.dx, row * args.dx_stride + i, count)};
}

/// Adds to the sums of g = dy weight (first) and of g times the normalised x (second).
template <bool kCentred, bool kWhole>
__device__ __forceinline__ void project(const Backward& args, const RowQuads& q, int64_t i,
                                        float mean, float rstd, Sums& sums) {
  const Quad weight = load_quad<kWhole>(args.weight, i, args.cols - i);
  const Quad dy = quad_of(args.dy.type, q.dy);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float g = dy.x[k] * weight.x[k];
    if constexpr (kCentred) {
      sums.first += g;
    }
    sums.second += kWhole || i + k < args.cols ? g * rules::normalised(q.x.x[k], mean, rstd) : 0.0F;
  }
}

struct RowNumbers {
  float mean, rstd, centre, slope;
};

/// Sums over the block's rows for dweight and dbias at a quad of columns.
struct Share {
  Quad weight, bias;
};

/// Computes dx of a quad, and adds the row's contribution to the share. Columns beyond the end add
/// to values that are never stored.
template <bool kCentred, bool kWhole>
__device__ __forceinline__ void give(const Backward& args, const RowQuads& q, int64_t row,
                                     int64_t i, const RowNumbers& of, Share& share) {
  const Quad weight = load_quad<kWhole>(args.weight, i, args.cols - i);
  const Quad dy = quad_of(args.dy.type, q.dy);
  Quad dx = q.dx;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float normalised = rules::normalised(q.x.x[k], of.mean, of.rstd);
    dx.x[k] += rules::norm_gradient(dy.x[k], weight.x[k], normalised, of.rstd, of.centre, of.slope);
    share.weight.x[k] += dy.x[k] * normalised;
    if constexpr (kCentred) {
      share.bias.x[k] += dy.x[k];
    }
  }
  store_quad<kWhole>(args.dx, row * args.dx_stride + i, args.cols - i, dx);
  if (args.rounded.data != nullptr) {
    store_quad<kWhole>(args.rounded, row * args.rounded_stride + i, args.cols - i, dx);
  }
}

template <bool kWhole, int kQuads>
__device__ __forceinline__ void read_row(const Backward& args, int64_t row,
                                         RowQuads (&held)[kQuads]) {
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    held[j] = read_quads<kWhole>(args, row, 4 * (int64_t{threadIdx.x} + j * int64_t{blockDim.x}));
  }
}

/// `held`: this row's quads, which the call replaces by those of `next_row`. `held_share`: shares
/// of the columns that the thread holds; `shares` [2, cols]: those of the others.
template <bool kCentred, bool kWhole, int kQuads>
__device__ __forceinline__ void backward_row(const Backward& args, int64_t row, int64_t next_row,
                                             RowQuads (&held)[kQuads], Share (&held_share)[kQuads],
                                             float* shares) {
  const int64_t cols = args.cols;
  const int64_t first = 4 * int64_t{threadIdx.x};
  const int64_t step = 4 * int64_t{blockDim.x};
  const float mean = kCentred ? args.mean[row] : 0.0F;
  const float rstd = args.rstd[row];
  Sums sums;
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    if (first + j * step < cols) {
      project<kCentred, kWhole>(args, held[j], first + j * step, mean, rstd, sums);
    }
  }
  for (int64_t i = first + kQuads * step; i < cols; i += step) {
    project<kCentred, kWhole>(args, read_quads<kWhole>(args, row, i), i, mean, rstd, sums);
  }
  RowQuads next[kQuads];
  read_row<kWhole>(args, next_row, next);
  sums = block_sum(sums);
  const RowNumbers numbers{mean, rstd, sums.first * args.inverse_width,
                           sums.second * args.inverse_width};
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    if (first + j * step < cols) {
      give<kCentred, kWhole>(args, held[j], row, first + j * step, numbers, held_share[j]);
    }
    held[j] = next[j];
  }
  for (int64_t i = first + kQuads * step; i < cols; i += step) {
    Share share{load_quad<kWhole>(shares, i, cols - i),
                kCentred ? load_quad<kWhole>(shares, cols + i, cols - i) : Quad{}};
    give<kCentred, kWhole>(args, read_quads<kWhole>(args, row, i), row, i, numbers, share);
    store_quad<kWhole>(shares, i, cols - i, share.weight);
    if constexpr (kCentred) {
      store_quad<kWhole>(shares, cols + i, cols - i, share.bias);
    }
  }
}

/// A thread has the same columns of every row, so its shares need no barrier.
template <bool kCentred, bool kWhole, int kQuads>
__device__ __forceinline__ void backward_rows(const Backward& args) {
  const int64_t cols = args.cols;
  const int64_t first = 4 * int64_t{threadIdx.x};
  const int64_t step = 4 * int64_t{blockDim.x};
  float* const out = args.shares + blockIdx.x * (kCentred ? 2 : 1) * cols;
  float* const shares = args.in_shared ? dynamic_shared<float>() : out;
  Share held_share[kQuads] = {};
  for (int64_t i = first + kQuads * step; i < cols; i += step) {
    store_quad<kWhole>(shares, i, cols - i, Quad{});
    if constexpr (kCentred) {
      store_quad<kWhole>(shares, cols + i, cols - i, Quad{});
    }
  }
  const int64_t end = least(args.rows, (blockIdx.x + 1) * args.rows_each);
  RowQuads held[kQuads];
  read_row<kWhole>(args, blockIdx.x * args.rows_each, held);
  for (int64_t row = blockIdx.x * args.rows_each; row < end; ++row) {
    backward_row<kCentred, kWhole>(args, row, least(row + 1, end - 1), held, held_share, shares);
  }
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    const int64_t i = first + j * step;
    if (i < cols) {
      store_quad<kWhole>(out, i, cols - i, held_share[j].weight);
      if constexpr (kCentred) {
        store_quad<kWhole>(out, cols + i, cols - i, held_share[j].bias);
      }
    }
  }
  for (int64_t i = first + kQuads * step; i < cols && args.in_shared; i += step) {
    store_quad<kWhole>(out, i, cols - i, load_quad<kWhole>(shares, i, cols - i));
    if constexpr (kCentred) {
      store_quad<kWhole>(out, cols + i, cols - i, load_quad<kWhole>(shares, cols + i, cols - i));
    }
  }
}

template <bool kCentred, bool kWhole, int kQuads>
__global__ void __launch_bounds__(kBackwardThreads, backward_blocks(kQuads))
    norm_rows_backward(Backward args) {
  backward_rows<kCentred, kWhole, kQuads>(args);
}

template <bool kCentred>
void forward_pass(Stream& stream, const NormArgs& args) {
  const int64_t cols = args.x.cols();
  const int64_t rows = args.x.rows();
  Forward forward{.x = static_cast<const float*>(args.x.data),
                  .weight = elements(args.weight),
                  .bias = elements(args.bias),
                  .y = elements(args.y),
                  .mean = static_cast<float*>(args.mean.data),
                  .rstd = static_cast<float*>(args.rstd.data),
                  .rows = rows,
                  .cols = cols,
                  .x_stride = args.x.stride,
                  .y_stride = args.y.stride,
                  .inverse_width = 1.0F / static_cast<float>(cols),
                  .epsilon = args.epsilon};
  forward.whole = cols % 4 == 0 && has_whole_quads(elements(args.x), args.x.stride) &&
                  has_whole_quads(forward.weight) && has_whole_quads(forward.bias) &&
                  has_whole_quads(forward.y, args.y.stride);
  if (forward.whole && cols <= 128 * kQuadsOfLane) {
    launch(norm_warps<kCentred>,
           {.name = "norm", .grid = blocks_for(rows, kWarps), .block = 32 * kWarps}, stream,
           forward);
  } else {
    launch(
        norm_row<kCentred>,
        {.name = "norm", .grid = blocks_for(rows, 1), .block = threads_for_row(divide_up(cols, 4))},
        stream, forward);
  }
}

template <bool kCentred, int kQuads>
void launch_backward(Stream& stream, const Launch& shape, const Backward& backward) {
  launch(backward.whole ? norm_rows_backward<kCentred, true, kQuads>
                        : norm_rows_backward<kCentred, false, kQuads>,
         shape, stream, backward);
}

template <bool kCentred>
void backward_pass(Stream& stream, const NormBackwardArgs& args) {
  // All blocks are resident at once on an H100 or H200: a second wave of a few would take as long.
  constexpr int64_t kMultiprocessors = 132;
  constexpr int64_t kSharedBytes = 96 << 10;  // available on every architecture that we compile for
  const int64_t rows = args.x.rows();
  const int64_t cols = args.x.cols();
  const int64_t quads = divide_up(cols, 4);
  const int held = quads <= kBackwardThreads ? 1 : quads <= 2 * kBackwardThreads ? 2 : kHeld;
  const unsigned threads = whole_warps(divide_up(quads, held), kBackwardThreads);
  const int64_t resident =
      kMultiprocessors * (backward_blocks(held) * kBackwardThreads / int64_t{threads});
  const int64_t together = divide_up(rows, resident);
  const int64_t parts = rows == 0 ? 0 : divide_up(rows, together);
  const int64_t share_size = (kCentred ? 2 : 1) * cols;
  const int64_t share_bytes = share_size * static_cast<int64_t>(sizeof(float));
  auto* shares = reinterpret_cast<float*>(
      stream.workspace(static_cast<size_t>(parts * share_bytes) + sizeof(float)));
  const bool all_held = quads <= held * int64_t{threads};
  Backward backward{.dy = elements(args.dy),
                    .weight = elements(args.weight),
                    .rounded = elements(args.rounded),
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
                    .rounded_stride = args.rounded.stride,
                    .inverse_width = 1.0F / static_cast<float>(cols),
                    .in_shared = !all_held && share_bytes <= kSharedBytes};
  backward.whole = cols % 4 == 0 && has_whole_quads(backward.dy, args.dy.stride) &&
                   has_whole_quads(backward.weight) &&
                   has_whole_quads(backward.rounded, args.rounded.stride) &&
                   has_whole_quads(elements(args.x), args.x.stride) &&
                   has_whole_quads(elements(args.dx), args.dx.stride) && has_whole_quads(shares);
  const Launch shape{.name = "norm_backward",
                     .grid = blocks_for(parts, 1),
                     .block = threads,
                     .shared_bytes = backward.in_shared ? static_cast<size_t>(share_bytes) : 0};
  const auto by = held == 1   ? launch_backward<kCentred, 1>
                  : held == 2 ? launch_backward<kCentred, 2>
                              : launch_backward<kCentred, kHeld>;
  by(stream, shape, backward);
  combine_shares(stream, {shares, parts, share_size, cols, elements(args.dweight), args.accumulate,
                          elements(args.dbias)});
}

}  // namespace

void norm(Stream& stream, const NormArgs& args) {
  args.bias ? forward_pass<true>(stream, args) : forward_pass<false>(stream, args);
}

void norm_backward(Stream& stream, const NormBackwardArgs& args) {
  args.dbias ? backward_pass<true>(stream, args) : backward_pass<false>(stream, args);
}

}  // namespace espalier::kernels::ESPALIER_GPU
