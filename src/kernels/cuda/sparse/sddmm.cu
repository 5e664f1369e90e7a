// The gradient of a sparse weight: a warp has 128 kept elements of a row, four per lane, and loops
// over the tokens in order.
#include <algorithm>

#include "src/kernels/cuda/block/products.h"
#include "src/kernels/cuda/simt/reduce.h"
#include "src/kernels/cuda/sparse/by_library.h"
#include "src/kernels/cuda/sparse/products.h"
#include "src/kernels/cuda/sparse/rows.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr unsigned kWarps = 8;
constexpr int kEach = 4;
constexpr int64_t kPart = 32 * kEach;

struct Gradient {
  Elements values, dy, x;
  int64_t tokens, dy_stride, x_stride;
  bool accumulate;
};

template <class Rows>
__global__ void __launch_bounds__(32 * kWarps) sample(Rows rows, Gradient args) {
  const int64_t n = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (n >= rows.rows) {
    return;
  }
  const SparseRow row = rows.row(n);
  const int64_t first = blockIdx.y * kPart + threadIdx.x % 32;
  if (first >= row.count) {
    return;
  }
  int64_t columns[kEach];
  float sums[kEach] = {};
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int64_t j = first + 32 * e;
    columns[e] = j < row.count ? rows.column(row, j) : 0;
  }
  for (int64_t token = 0; token < args.tokens; ++token) {
    const float dy = load(args.dy, token * args.dy_stride + n);
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      sums[e] += dy * load(args.x, token * args.x_stride + columns[e]);
    }
  }
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int64_t j = first + 32 * e;
    if (j < row.count) {
      const float before = args.accumulate ? load(args.values, row.value + j) : 0.0F;
      store(args.values, row.value + j, before + sums[e]);
    }
  }
}

template <class Args>
void run(Stream& stream, const char* name, const Args& args) {
  const auto rows = rows_of(stream, args.weight, stream.workspace(rows_bytes(args.weight)));
  const Gradient gradient{.values = elements(args.weight.values),
                          .dy = elements(args.dy),
                          .x = elements(args.x),
                          .tokens = args.x.rows(),
                          .dy_stride = args.dy.stride,
                          .x_stride = args.x.stride,
                          .accumulate = args.accumulate};
  const Launch shape{
      .name = name,
      .grid = dim3(blocks_for(args.weight.rows, kWarps), blocks_for(args.weight.cols, kPart)),
      .block = 32 * kWarps};
  launch(sample<std::remove_const_t<decltype(rows)>>, shape, stream, rows, gradient);
}

/// True if slabs are expected to be faster. This is an estimate, not a measurement on a GPU: a
/// warp's sum for one kept element costs about as much as tensor cores need for a thousand
/// elements.
bool is_for_slabs(const SddmmArgs& args) {
  constexpr int64_t kMinTerms = int64_t{1} << 22;
  constexpr int64_t kMinDensity = 1000;  // one kept element in
  const int64_t kept = args.weight.positions.count;
  return kept * args.x.rows() >= kMinTerms &&
         kept * kMinDensity >= args.weight.rows * args.weight.cols;
}

}  // namespace

void sddmm(Stream& stream, const SddmmArgs& args) {
  if (by_library(stream, args)) {
    return;
  }
  if (is_for_slabs(args)) {
    constexpr int64_t kMultiple = 64;  // rows; gives operands of all slabs the same alignment
    const int64_t fit = kSlabBytes / (args.weight.cols * static_cast<int64_t>(sizeof(float)));
    sddmm_by_slabs(stream, args, std::max(fit / kMultiple, int64_t{1}) * kMultiple);
  } else {
    run(stream, "sddmm", args);
  }
}
void block_sddmm_by_rows(Stream& stream, const BlockSddmmArgs& args) {
  run(stream, "block_sddmm_by_rows", args);
}

}  // namespace espalier::kernels::ESPALIER_GPU
