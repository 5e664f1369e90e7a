// Arguments of products with pruned weights; see verify.h.
#include "src/kernels/verify/rules.h"

namespace espalier::kernels {
namespace {

/// The kept elements and their places.
void is_sparse(const SparseMatrix& weight) {
  is_positions(weight.positions);
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

/// One element type for both operands, fp32 or the same for the result.
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

}  // namespace

void verify(const CsrArgs& args) {
  is_positions(args.positions);
  require(args.positions.size == args.rows * args.cols, "positions must cover the matrix",
          args.positions.size, args.rows, args.cols);
  const std::pair<const Tensor&, int64_t> arrays[] = {{args.row_begin, args.rows + 1},
                                                      {args.column, args.positions.count},
                                                      {args.column_begin, args.cols + 1},
                                                      {args.row, args.positions.count},
                                                      {args.order, args.positions.count}};
  for (const auto& [array, count] : arrays) {
    is_int32("a list of kept elements", array);
    is_flat("a list of kept elements", array, count);
  }
}

void verify(const SpmmArgs& args) { is_spmm(args); }
void verify(const SpmmTransposedArgs& args) { is_spmm_transposed(args); }
void verify(const SddmmArgs& args) { is_sddmm(args); }
void verify(const BlockSpmmArgs& args) { is_spmm(args); }
void verify(const BlockSpmmTransposedArgs& args) { is_spmm_transposed(args); }
void verify(const BlockSddmmArgs& args) { is_sddmm(args); }

}  // namespace espalier::kernels
