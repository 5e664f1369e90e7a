// RMSNorm of each head. A warp has one head of a row at a time: each lane holds every 32nd quad of
// its columns. Backward: a warp has several heads, one after another, and sums its share of dweight
// in registers.
#include "src/kernels/cuda/rowwise/combine.h"
#include "src/kernels/cuda/simt/reduce.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/rules/norm.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr int kWarps = 8;
constexpr int kMostQuads = 8;  ///< of a lane
constexpr int64_t kMostColumns = 128 * kMostQuads;

struct Forward {
  Elements x, weight, y;
  float* rstd;
  int64_t pieces, heads, width, x_stride, y_stride;
  float inverse_width, epsilon;
};

struct Backward {
  Elements dy, x, weight, dx;
  const float* rstd;
  float* shares;  ///< [parts, width]: one of each warp
  int64_t pieces, parts, heads, width, dy_stride, x_stride, dx_stride;
  float inverse_width;
};

/// Index of a head's first element in an operand. Pieces are numbered: row heads + head.
__device__ __forceinline__ int64_t first_of(int64_t piece, int64_t heads, int64_t width,
                                            int64_t stride) {
  const int64_t row = quotient(piece, heads);
  return row * stride + (piece - row * heads) * width;
}

__device__ __forceinline__ int64_t column_of(int quad) {
  return 4 * (static_cast<int64_t>(threadIdx.x % 32) + 32 * quad);
}

template <bool kWhole, int kQuads>
__device__ __forceinline__ void read_piece(const Elements& from, int64_t first, int64_t width,
                                           RawQuad (&held)[kQuads]) {
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    const int64_t c = column_of(j);
    held[j] = c < width ? load_raw<kWhole>(from, first + c, width - c) : RawQuad{};
  }
}

template <bool kWhole, int kQuads>
__global__ void __launch_bounds__(32 * kWarps) normalise_heads(Forward of) {
  const int64_t piece = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (piece >= of.pieces) {
    return;
  }
  RawQuad held[kQuads];
  read_piece<kWhole>(of.x, first_of(piece, of.heads, of.width, of.x_stride), of.width, held);
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    const Quad q = quad_of(of.x.type, held[j]);
    squares += (q.x[0] * q.x[0] + q.x[1] * q.x[1]) + (q.x[2] * q.x[2] + q.x[3] * q.x[3]);
  }
  const float rstd = quick_inverse_root(warp_sum(squares) * of.inverse_width + of.epsilon);
  const int64_t to = first_of(piece, of.heads, of.width, of.y_stride);
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    const int64_t c = column_of(j);
    if (c < of.width) {
      const Quad weight = load_quad<kWhole>(of.weight, c, of.width - c);
      Quad q = quad_of(of.x.type, held[j]);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        q.x[k] = rules::norm_value<false>(q.x[k], 0.0F, rstd, weight.x[k], 0.0F);
      }
      store_quad<kWhole>(of.y, to + c, of.width - c, q);
    }
  }
  if (threadIdx.x % 32 == 0) {
    of.rstd[piece] = rstd;
  }
}

template <bool kWhole, int kQuads>
__global__ void __launch_bounds__(32 * kWarps) differentiate_heads(Backward of) {
  const int64_t part = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (part >= of.parts) {
    return;
  }
  const int64_t each = (of.pieces + of.parts - 1) / of.parts;
  const int64_t end = least(of.pieces, (part + 1) * each);
  Quad share[kQuads] = {};
  for (int64_t piece = part * each; piece < end; ++piece) {
    RawQuad held_x[kQuads];
    RawQuad held_dy[kQuads];
    read_piece<kWhole>(of.x, first_of(piece, of.heads, of.width, of.x_stride), of.width, held_x);
    read_piece<kWhole>(of.dy, first_of(piece, of.heads, of.width, of.dy_stride), of.width, held_dy);
    const float rstd = of.rstd[piece];
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const int64_t c = column_of(j);
      if (c < of.width) {
        const Quad weight = load_quad<kWhole>(of.weight, c, of.width - c);
        const Quad x = quad_of(of.x.type, held_x[j]);
        const Quad dy = quad_of(of.dy.type, held_dy[j]);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          sum += dy.x[k] * weight.x[k] * rules::normalised(x.x[k], 0.0F, rstd);
        }
      }
    }
    const float slope = warp_sum(sum) * of.inverse_width;
    const int64_t to = first_of(piece, of.heads, of.width, of.dx_stride);
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const int64_t c = column_of(j);
      if (c < of.width) {
        const Quad weight = load_quad<kWhole>(of.weight, c, of.width - c);
        const Quad x = quad_of(of.x.type, held_x[j]);
        const Quad dy = quad_of(of.dy.type, held_dy[j]);
        Quad dx;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float normalised = rules::normalised(x.x[k], 0.0F, rstd);
          share[j].x[k] += dy.x[k] * normalised;
          dx.x[k] = rules::norm_gradient(dy.x[k], weight.x[k], normalised, rstd, 0.0F, slope);
        }
        store_quad<kWhole>(of.dx, to + c, of.width - c, dx);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    const int64_t c = column_of(j);
    if (c < of.width) {
      store_quad<kWhole>(of.shares, part * of.width + c, of.width - c, share[j]);
    }
  }
}

void check_width(int64_t width) {
  check(width <= kMostColumns,
        "norms of heads on a GPU support heads of at most {} columns, not {}; set more model.heads",
        kMostColumns, width);
}

bool is_whole(int64_t width, const Elements& e, int64_t stride) {
  return width % 4 == 0 && has_whole_quads(e, stride);
}

}  // namespace

void head_norm(Stream& stream, const HeadNormArgs& args) {
  const int64_t width = args.weight.count();
  check_width(width);
  const Forward of{.x = elements(args.x),
                   .weight = elements(args.weight),
                   .y = elements(args.y),
                   .rstd = static_cast<float*>(args.rstd.data),
                   .pieces = args.x.rows() * args.heads,
                   .heads = args.heads,
                   .width = width,
                   .x_stride = args.x.stride,
                   .y_stride = args.y.stride,
                   .inverse_width = 1.0F / static_cast<float>(width),
                   .epsilon = args.epsilon};
  const bool whole = is_whole(width, of.x, of.x_stride) && is_whole(width, of.y, of.y_stride) &&
                     has_whole_quads(of.weight);
  const auto kernel = whole ? (width <= 128   ? normalise_heads<true, 1>
                               : width <= 256 ? normalise_heads<true, 2>
                                              : normalise_heads<true, kMostQuads>)
                            : (width <= 128   ? normalise_heads<false, 1>
                               : width <= 256 ? normalise_heads<false, 2>
                                              : normalise_heads<false, kMostQuads>);
  launch(kernel, {.name = "head_norm", .grid = blocks_for(of.pieces, kWarps), .block = 32 * kWarps},
         stream, of);
}

void head_norm_backward(Stream& stream, const HeadNormBackwardArgs& args) {
  // Warps that fill a large device, each with enough heads to justify the cost of its share.
  constexpr int64_t kMostParts = 4096;
  constexpr int64_t kMinPieces = 16;
  const int64_t width = args.weight.count();
  check_width(width);
  const int64_t pieces = args.x.rows() * args.heads;
  const int64_t useful = divide_up(pieces, kMinPieces);
  const int64_t parts = useful < kMostParts ? useful : kMostParts;
  auto* shares = reinterpret_cast<float*>(
      stream.workspace(static_cast<size_t>(parts * width + 1) * sizeof(float)));
  const Backward of{.dy = elements(args.dy),
                    .x = elements(args.x),
                    .weight = elements(args.weight),
                    .dx = elements(args.dx),
                    .rstd = static_cast<const float*>(args.rstd.data),
                    .shares = shares,
                    .pieces = pieces,
                    .parts = parts,
                    .heads = args.heads,
                    .width = width,
                    .dy_stride = args.dy.stride,
                    .x_stride = args.x.stride,
                    .dx_stride = args.dx.stride,
                    .inverse_width = 1.0F / static_cast<float>(width)};
  const bool whole = is_whole(width, of.dy, of.dy_stride) && is_whole(width, of.x, of.x_stride) &&
                     is_whole(width, of.dx, of.dx_stride) && has_whole_quads(of.weight) &&
                     has_whole_quads(shares);
  const auto kernel = whole ? (width <= 128   ? differentiate_heads<true, 1>
                               : width <= 256 ? differentiate_heads<true, 2>
                                              : differentiate_heads<true, kMostQuads>)
                            : (width <= 128   ? differentiate_heads<false, 1>
                               : width <= 256 ? differentiate_heads<false, 2>
                                              : differentiate_heads<false, kMostQuads>);
  launch(kernel,
         {.name = "head_norm_backward", .grid = blocks_for(parts, kWarps), .block = 32 * kWarps},
         stream, of);
  combine_shares(stream, {shares, parts, width, width, elements(args.dweight), args.accumulate});
}

}  // namespace espalier::kernels::ESPALIER_GPU
