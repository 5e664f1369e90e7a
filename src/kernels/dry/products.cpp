#include "src/kernels/dry/products.h"

#include <algorithm>

#include "src/kernels/dry/count.h"
#include "src/kernels/verify/verify.h"

namespace espalier::kernels::dry {
namespace {

/// Rows of x times kept elements, two flops each.
double product_flops(const Tensor& x, const Tensor& values) {
  return 2 * static_cast<double>(x.rows()) * elements(values);
}

double matrix_traffic(const SparseMatrix& weight) {
  return traffic(weight.values) + traffic(weight.positions);
}

double matrix_traffic(const BlockMatrix& weight) {
  return traffic(weight.values) +
         4 * elements(weight.values) / static_cast<double>(weight.height * weight.width);
}

/// Packed rows of activations of the threads.
int64_t packed_rows(const Stream& stream, int64_t rows, int64_t cols) {
  constexpr int64_t kEach = int64_t{1} << 20;
  return stream.threads() * (kEach + 256 * (rows + cols));
}

/// The weight in the order of the kernel's tiles: at most 9 bytes a kept element, a quarter of a
/// byte for all.
void allow_form(Stream& stream, const SparseMatrix& weight) {
  const int64_t size = (weight.rows + 128) * (weight.cols + 128);
  allow(stream,
        9 * weight.values.count() + size / 4 + packed_rows(stream, weight.rows, weight.cols));
}

/// Lanes that a block takes along one side, as panels and stripes are cut.
int64_t lanes(int64_t extent) { return rounded_up(extent, extent > 16 ? 32 : 16); }

/// The weight in panels of whole lanes, in either direction, and lists of its blocks.
void allow_form(Stream& stream, const BlockMatrix& weight) {
  const int64_t blocks = weight.values.count() / (weight.height * weight.width) +
                         weight.rows / weight.height + weight.cols / weight.width + 2;
  const int64_t panel =
      4 * std::max(weight.width * lanes(weight.height), weight.height * lanes(weight.width));
  const int64_t lists = 4 * std::max(weight.width, weight.height) + 40;
  allow(stream, blocks * (panel + lists) + packed_rows(stream, weight.rows, weight.cols));
}

void allow_gradient(Stream& stream, const SparseMatrix& weight) { allow_form(stream, weight); }

/// Both operands in stripes of as many words, fp32 sums.
void allow_gradient(Stream& stream, const BlockMatrix& weight) {
  constexpr int64_t kChunk = 256;
  auto stripes = [](int64_t extent, int64_t block) {
    return (extent / block + 1) * (lanes(block) * kChunk + 16);
  };
  allow(stream, 4 * (stripes(weight.rows, weight.height) + stripes(weight.cols, weight.width) +
                     weight.values.count() + kChunk));
}

template <class Args>
void count_spmm(Stream& stream, const Args& args) {
  verify(args);
  allow_form(stream, args.weight);
  add(product_flops(args.x, args.weight.values) +
          flops_of(args.activation) * elements(args.activated),
      matrix_traffic(args.weight) + traffic(args.x, args.y, args.bias, args.activated) +
          (args.accumulate ? traffic(args.y) : 0));
}

template <class Args>
void count_spmm_transposed(Stream& stream, const Args& args) {
  verify(args);
  allow_form(stream, args.weight);
  add(product_flops(args.dy, args.weight.values) +
          1.5 * flops_of(args.activation) * elements(args.preactivation),
      matrix_traffic(args.weight) + traffic(args.dy, args.dx, args.preactivation) +
          (args.accumulate ? traffic(args.dx) : 0));
}

template <class Args>
void count_sddmm(Stream& stream, const Args& args) {
  verify(args);
  allow_gradient(stream, args.weight);
  add(product_flops(args.x, args.weight.values),
      matrix_traffic(args.weight) + traffic(args.dy, args.x) +
          (args.accumulate ? traffic(args.weight.values) : 0));
}

}  // namespace

void spmm(Stream& stream, const SpmmArgs& args) { count_spmm(stream, args); }
void block_spmm(Stream& stream, const BlockSpmmArgs& args) { count_spmm(stream, args); }
void spmm_transposed(Stream& stream, const SpmmTransposedArgs& args) {
  count_spmm_transposed(stream, args);
}
void block_spmm_transposed(Stream& stream, const BlockSpmmTransposedArgs& args) {
  count_spmm_transposed(stream, args);
}
void sddmm(Stream& stream, const SddmmArgs& args) { count_sddmm(stream, args); }
void block_sddmm(Stream& stream, const BlockSddmmArgs& args) { count_sddmm(stream, args); }

}  // namespace espalier::kernels::dry
