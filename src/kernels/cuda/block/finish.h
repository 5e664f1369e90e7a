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
};

template <DType kHalf>
__device__ __forceinline__ uint2 packed(const Quad& q) {
  return make_uint2(pack_halves<kHalf>(q.x[0], q.x[1]), pack_halves<kHalf>(q.x[2], q.x[3]));
}

/// Stores `q` as elements i … i + count - 1 and returns the rounded values. In 16 bits NaN becomes
/// 0x7fff.
__device__ __forceinline__ Quad store_rounded(const Elements& e, int64_t i, int64_t count,
                                              const Quad& q) {
  if (!e.half()) {
    store_quad(static_cast<float*>(e.data), i, count, q);
    return q;
  }
  const uint2 bits = e.type == DType::fp16 ? packed<DType::fp16>(q) : packed<DType::bf16>(q);
  store_halves(static_cast<uint16_t*>(e.data) + i, count, bits);
  return quad_of(e.type, bits);
}

/// Finishes one quad of sums, at row `row` and columns from `column` on.
__device__ __forceinline__ void finish_quad(const ProductResult& out, int64_t row, int64_t column,
                                            int64_t count, const Quad& bias, Quad sum) {
  if (out.before.data != nullptr) {
    const Quad before = load_quad(out.before, row * out.before_stride + column, count);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      sum.x[k] *= activation_slope(out.activation, before.x[k]);
    }
  }
  const int64_t at = row * out.y_stride + column;
  const Quad old = out.accumulate ? load_quad(out.y, at, count) : Quad{};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    sum.x[k] += bias.x[k] + old.x[k];
  }
  Quad stored = store_rounded(out.y, at, count, sum);
  if (out.activated.data != nullptr) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      stored.x[k] = activate(out.activation, stored.x[k]);
    }
    store_rounded(out.activated, row * out.activated_stride + column, count, stored);
  }
}

/// Finishes all sums of a tile; `part` may be smaller than the tile.
template <class Shape>
__device__ __forceinline__ void finish_tile(const ProductResult& out, const ResultPart& part,
                                            const float* sums) {
  constexpr int kQuads = Shape::kN / 4;
  constexpr int kApart = kTileThreads / kQuads;  ///< rows between a thread's quads
  const int column = static_cast<int>(threadIdx.x) % kQuads * 4;
  const int64_t count = part.columns - column;
  if (count <= 0) {
    return;
  }
  const Quad bias = out.bias != nullptr ? load_quad(out.bias, part.column + column, count) : Quad{};
  const auto rows = static_cast<int>(least(Shape::kM, part.rows));
  for (int row = static_cast<int>(threadIdx.x) / kQuads; row < rows; row += kApart) {
    const Quad sum = load_quad(sums, row * Shape::kSumStride + column, 4);
    finish_quad(out, part.row + row, part.column + column, count, bias, sum);
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
