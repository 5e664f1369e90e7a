#pragma once
// Writes the sums of a tile (tile.h) as the result of a product: y (+)= f'(before) sum + bias, and
// activated = f(y). Quads are written row by row, so that whole memory sectors are written.
#include "src/kernels/cuda/block/tile.h"
#include "src/kernels/cuda/elementwise/activation.h"

namespace espalier::kernels::ESPALIER_GPU {

/// Operands of the epilogue. All but y are optional: a null pointer means absent.
struct ProductResult {
  Elements y = {}, before = {}, activated = {};
  int64_t y_stride = 0, before_stride = 0, activated_stride = 0;
  const float* bias = nullptr;
  Activation activation = Activation::none;
  bool accumulate = false;

  /// True if all quads of all operands are aligned.
  bool aligned() const {
    return has_whole_quads(y, y_stride) && has_whole_quads(before, before_stride) &&
           has_whole_quads(activated, activated_stride) && has_whole_quads(bias);
  }
};

template <DType kHalf>
__device__ __forceinline__ uint2 packed(const Quad& q) {
  return make_uint2(pack_halves<kHalf>(q.x[0], q.x[1]), pack_halves<kHalf>(q.x[2], q.x[3]));
}

/// Stores `q` as elements i … i + count - 1 and returns the rounded values. In 16 bits NaN becomes
/// 0x7fff.
template <bool kWhole>
__device__ __forceinline__ Quad store_rounded(const Elements& e, int64_t i, int64_t count,
                                              const Quad& q) {
  if (!e.half()) {
    store_quad<kWhole>(static_cast<float*>(e.data), i, count, q);
    return q;
  }
  const uint2 bits = e.type == DType::fp16 ? packed<DType::fp16>(q) : packed<DType::bf16>(q);
  store_halves<kWhole>(static_cast<uint16_t*>(e.data) + i, count, bits);
  return quad_of(e.type, bits);
}

/// The operands that the epilogue reads for a quad: `before`, and the old values of y.
struct ReadQuads {
  RawQuad before, old;
};

template <bool kWhole>
__device__ __forceinline__ ReadQuads read_quad(const ProductResult& out, int64_t row,
                                               int64_t column, int64_t count) {
  ReadQuads read{};
  if (out.before.data != nullptr) {
    read.before = load_raw<kWhole>(out.before, row * out.before_stride + column, count);
  }
  if (out.accumulate) {
    read.old = load_raw<kWhole>(out.y, row * out.y_stride + column, count);
  }
  return read;
}

/// Finishes one quad of sums, at row `row` and columns from `column` on.
template <bool kWhole>
__device__ __forceinline__ void finish_quad(const ProductResult& out, int64_t row, int64_t column,
                                            int64_t count, const Quad& bias, const ReadQuads& read,
                                            Quad sum) {
  if (out.before.data != nullptr) {
    const Quad before = quad_of(out.before.type, read.before);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      sum.x[k] *= activation_slope(out.activation, before.x[k]);
    }
  }
  const Quad old = quad_of(out.y.type, read.old);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    sum.x[k] += bias.x[k] + old.x[k];
  }
  Quad stored = store_rounded<kWhole>(out.y, row * out.y_stride + column, count, sum);
  if (out.activated.data != nullptr) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      stored.x[k] = activate(out.activation, stored.x[k]);
    }
    store_rounded<kWhole>(out.activated, row * out.activated_stride + column, count, stored);
  }
}

/// Finishes a thread's quads, at `column` of the tile's rows. All loads of a few quads are issued
/// before the first is used: an SM has only 8 warps of a tile, too few to hide each load's latency.
template <bool kWhole, class Shape>
__device__ __forceinline__ void finish_column(const ProductResult& out, const ResultPart& part,
                                              const float* sums, int column, int64_t count) {
  constexpr int kTogether = 4;
  constexpr int kQuads = Shape::kN / 4;
  constexpr int kApart = kTileThreads / kQuads;  ///< rows between a thread's quads
  const Quad bias =
      out.bias != nullptr ? load_quad<kWhole>(out.bias, part.column + column, count) : Quad{};
  const auto rows = static_cast<int>(least(Shape::kM, part.rows));
  for (int first = static_cast<int>(threadIdx.x) / kQuads; first < rows;
       first += kTogether * kApart) {
    ReadQuads read[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (first + j * kApart < rows) {
        read[j] =
            read_quad<kWhole>(out, part.row + first + j * kApart, part.column + column, count);
      }
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int row = first + j * kApart;
      if (row < rows) {
        const Quad sum = load_quad<true>(sums, row * Shape::kSumStride + column, 4);
        finish_quad<kWhole>(out, part.row + row, part.column + column, count, bias, read[j], sum);
      }
    }
  }
}

/// Finishes all sums of a tile; `part` may be smaller than the tile. `aligned`: out.aligned().
template <class Shape>
__device__ __forceinline__ void finish_tile(const ProductResult& out, bool aligned,
                                            const ResultPart& part, const float* sums) {
  const int column = static_cast<int>(threadIdx.x) % (Shape::kN / 4) * 4;
  const int64_t count = part.columns - column;
  if (aligned && count >= 4 && part.column % 4 == 0) {
    finish_column<true, Shape>(out, part, sums, column, count);
  } else if (count > 0) {
    finish_column<false, Shape>(out, part, sums, column, count);
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
