#include "src/kernels/operations/sparse.h"

#include "src/kernels/verify/cost.h"
#include "src/kernels/verify/rules.h"

namespace espalier::kernels {
namespace {

/// Values at the kept positions.
void is_sparse(const SparseMatrix& weight) {
  // With kept forms, positions that no operation will read may be missing.
  if (weight.forms == nullptr || !weight.positions.all()) {
    is_positions(weight.positions);
  }
  require(
      weight.rows >= 0 && weight.cols >= 0 && weight.positions.size == weight.rows * weight.cols,
      "positions must cover the matrix", weight.positions.size, weight.rows, weight.cols);
  is_any_vector("values", weight.values, weight.positions.count);
}

void is_sparse(const BlockMatrix& weight) {
  require(weight.rows >= 0 && weight.cols >= 0 && weight.height > 0 && weight.width > 0,
          "a block matrix has extents and blocks of some size", weight.rows, weight.cols,
          weight.height, weight.width);
  require(weight.block_begin != nullptr && weight.value_begin != nullptr,
          "a block matrix knows where its rows begin");
  is_any("values", weight.values);
  is_flat("values", weight.values, weight.values.count());
}

/// Both operands have one element type; the result has that type or fp32.
void is_product(const Tensor& values, const Tensor& in, const Tensor& out) {
  require(values.dtype == in.dtype, "values and activations must have one type",
          name_of(values.dtype), name_of(in.dtype));
  require(out.dtype == in.dtype || out.dtype == DType::fp32,
          "the result must be fp32 or of the inputs' type", name_of(out.dtype));
}

template <class Matrix>
void is_spmm(const SpmmOf<Matrix>& args) {
  const auto& [weight, x, y, bias, activation, activated, accumulate] = args;
  is_sparse(weight);
  is_product(weight.values, x, y);
  is_matrix("x", x, x.rows(), weight.cols);
  is_matrix("y", y, x.rows(), weight.rows);
  if (bias) {
    is_fp32_vector("bias", bias, weight.rows);
  }
  if (activated) {
    require(activated.dtype == x.dtype, "activated must have the type of x",
            name_of(activated.dtype));
    is_matrix("activated", activated, x.rows(), weight.rows);
  }
}

template <class Matrix>
void is_spmm_transposed(const SpmmTransposedOf<Matrix>& args) {
  const auto& [weight, dy, dx, activation, preactivation, accumulate] = args;
  is_sparse(weight);
  is_product(weight.values, dy, dx);
  is_matrix("dy", dy, dy.rows(), weight.rows);
  is_matrix("dx", dx, dy.rows(), weight.cols);
  if (preactivation) {
    require(preactivation.dtype == dy.dtype, "preactivation must have the type of dy",
            name_of(preactivation.dtype));
    is_matrix("preactivation", preactivation, dy.rows(), weight.cols);
  }
}

template <class Matrix>
void is_sddmm(const SddmmOf<Matrix>& args) {
  is_sparse(args.weight);
  is_any("x", args.x);
  require(args.dy.dtype == args.x.dtype, "dy and x must have one type", name_of(args.dy.dtype),
          name_of(args.x.dtype));
  is_matrix("dy", args.dy, args.x.rows(), args.weight.rows);
  is_matrix("x", args.x, args.x.rows(), args.weight.cols);
}

/// x, y: the input and the output side.
void is_convolution(const Window& window, const SparseMatrix& weight, const Tensor& x,
                    const Tensor& y) {
  const int64_t images = images_of(window, x.rows());
  is_sparse(weight);
  require(weight.cols == window.area() * x.cols(), "a weight has all places of the window",
          weight.cols, window.area(), x.cols());
  is_matrix("x", x, x.rows(), x.cols());
  is_matrix("y", y, images * window.out_pixels(), weight.rows);
}

/// Flops of rows of x times kept elements, two each.
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

template <class Args>
DryCount spmm_cost(const Args& args) {
  return {product_flops(args.x, args.weight.values) +
              flops_of(args.activation) * elements(args.activated),
          matrix_traffic(args.weight) + traffic(args.x, args.y, args.bias, args.activated) +
              (args.accumulate ? traffic(args.y) : 0)};
}

template <class Args>
DryCount spmm_transposed_cost(const Args& args) {
  return {product_flops(args.dy, args.weight.values) +
              1.5 * flops_of(args.activation) * elements(args.preactivation),
          matrix_traffic(args.weight) + traffic(args.dy, args.dx, args.preactivation) +
              (args.accumulate ? traffic(args.dx) : 0)};
}

template <class Args>
DryCount sddmm_cost(const Args& args) {
  return {product_flops(args.x, args.weight.values),
          matrix_traffic(args.weight) + traffic(args.dy, args.x) +
              (args.accumulate ? traffic(args.weight.values) : 0)};
}

}  // namespace

void verify(const SpmmArgs& args) { is_spmm(args); }
DryCount cost(const SpmmArgs& args) { return spmm_cost(args); }
void verify(const SpmmTransposedArgs& args) { is_spmm_transposed(args); }
DryCount cost(const SpmmTransposedArgs& args) { return spmm_transposed_cost(args); }
void verify(const SddmmArgs& args) { is_sddmm(args); }
DryCount cost(const SddmmArgs& args) { return sddmm_cost(args); }
void verify(const BlockSpmmArgs& args) { is_spmm(args); }
DryCount cost(const BlockSpmmArgs& args) { return spmm_cost(args); }
void verify(const BlockSpmmTransposedArgs& args) { is_spmm_transposed(args); }
DryCount cost(const BlockSpmmTransposedArgs& args) { return spmm_transposed_cost(args); }
void verify(const BlockSddmmArgs& args) { is_sddmm(args); }
DryCount cost(const BlockSddmmArgs& args) { return sddmm_cost(args); }

void verify(const SparseConvolutionArgs& args) {
  is_convolution(args.window, args.weight, args.x, args.y);
  is_product(args.weight.values, args.x, args.y);
  if (args.bias) {
    is_fp32_vector("bias", args.bias, args.weight.rows);
  }
}

DryCount cost(const SparseConvolutionArgs& args) {
  return {product_flops(args.y, args.weight.values),
          matrix_traffic(args.weight) + traffic(args.x, args.y, args.bias)};
}

void verify(const SparseConvolutionInputArgs& args) {
  is_convolution(args.window, args.weight, args.dx, args.dy);
  is_product(args.weight.values, args.dy, args.dx);
}

DryCount cost(const SparseConvolutionInputArgs& args) {
  return {product_flops(args.dy, args.weight.values),
          matrix_traffic(args.weight) + traffic(args.dy, args.dx)};
}

void verify(const SparseConvolutionWeightArgs& args) {
  is_convolution(args.window, args.weight, args.x, args.dy);
  is_any("x", args.x);
  is_same_type("dy", args.dy, args.x);
}

DryCount cost(const SparseConvolutionWeightArgs& args) {
  return {product_flops(args.dy, args.weight.values),
          matrix_traffic(args.weight) + traffic(args.dy, args.x) +
              (args.accumulate ? traffic(args.weight.values) : 0)};
}

}  // namespace espalier::kernels
