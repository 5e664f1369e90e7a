#pragma once
// A weight as a layer sees it: three operations, whatever the storage. W is [N, K]; x, dx are
// [R, K]; y, dy are [R, N], in the compute type unless said otherwise.
//
//   apply                 y = x Wᵀ + b (+ addend)      y may be fp32 in any compute type
//   apply_transposed      dx = dy W          likewise; `accumulate` adds to dx
//   accumulate_gradient   dW (+)= dyᵀ x      straight into the kept positions of the flat gradient;
//                                            and that of a bias, (+)= column sums of dy
//
// Storages (store/registry.h), in dense.cpp (dense, expanded) and sparse.cpp (sparse, block):
//   dense      products with the resident copy; dW by panels of rows in scratch, each gathered
//   expanded   the copy is rebuilt in scratch just before each product; dW as in dense
//   sparse     SpMM, SpMM of the transpose, SDDMM: no dense weight or gradient exists
//   block      the same for whole blocks; as `sparse` where blocks are thin (block_list.h)
// A weight that is not pruned is dense in all of them, and its gradient is a product straight into
// the flat array. The storage may change between steps. With a gradient probe set (store.h), dW of
// a pruned weight is one dense product for the probe instead; with several calls a pass, their sum.
#include "sparse/store/store.h"

namespace espalier::sparse {

class Weight {
 public:
  /// The weight behind a parameter of `store`; both must outlive it.
  Weight(Store& store, const kernels::Kernels& kernels, Parameter& parameter)
      : store_(store), kernels_(kernels), parameter_(parameter) {}

  struct Apply {
    Tensor x, y;
    Tensor bias;    ///< fp32 [N] or empty
    Tensor addend;  ///< like y, beside it; or empty
    /// With `activated`: also activated = f(y), in the compute type.
    kernels::Activation activation = kernels::Activation::none;
    Tensor activated;
    /// Reads the weight as fast as memory gives it, where the table has such products: for few
    /// rows. A row's bits then do not depend on the others.
    bool few_rows = false;
  };
  void apply(Stream& stream, const Apply& args);

  struct ApplyTransposed {
    Tensor dy, dx;
    bool accumulate = false;
    /// With `preactivation` [R, K]: dx = (dy W) f'(preactivation). Not with `accumulate`.
    kernels::Activation activation = kernels::Activation::none;
    Tensor preactivation;
  };
  void apply_transposed(Stream& stream, const ApplyTransposed& args);

  struct AccumulateGradient {
    Tensor dy, x;
    bool accumulate = false;  ///< false: overwrites
    /// Several calls in a row may compute the gradient of a pass, each from some rows of dy and x.
    bool continues = false;   ///< adds to the call before
    bool unfinished = false;  ///< another call adds to this one
    Tensor bias_gradient;     ///< any [N]: also (+)= column sums of dy; or empty
  };
  void accumulate_gradient(Stream& stream, const AccumulateGradient& args);

  /// For other operations than products, such as convolutions: whether the storage computes with
  /// the dense matrix, the matrix, valid until the next call, and the
  /// counterpart of accumulate_gradient: `compute` writes the whole dense gradient, fp32 [N, K].
  bool is_dense() const;
  Tensor dense() const;
  void accumulate_computed(Stream& stream, bool accumulate,
                           const std::function<void(const Tensor& gradient)>& compute);

  /// The same for kept elements: whether the storage computes with these, whether a probe wants the
  /// dense gradient (then accumulate_gradient must compute it), the matrix for an operation that
  /// reads this form of it, and its gradient, whose values the operation writes.
  bool is_sparse() const;
  bool probed() const;
  kernels::SparseMatrix sparse(kernels::PositionForm form) const;
  kernels::SparseMatrix sparse_gradient() const;

 private:
  Store& store_;
  const kernels::Kernels& kernels_;
  Parameter& parameter_;
};

/// The storage that computes: unpruned weights are dense, blocks without a list are thin and
/// computed as single elements. docs/decided.md has the decisions before and after it.
const Storage& effective_storage(const Parameter& parameter);

// For the sources of this folder:

/// Operands of the operations.
struct WeightContext {
  Store& store;
  const kernels::Kernels& kernels;
  Parameter& parameter;
};

/// The three operations of a storage.
struct Products {
  void (*apply)(Stream&, const WeightContext&, const Weight::Apply&);
  void (*apply_transposed)(Stream&, const WeightContext&, const Weight::ApplyTransposed&);
  void (*accumulate_gradient)(Stream&, const WeightContext&, const Weight::AccumulateGradient&);
};

/// The product of Weight::Apply::few_rows. False: there is none for this table or storage.
bool apply_to_few_rows(Stream& stream, const WeightContext& context, const Weight::Apply& args);

/// The kept elements of the parameter, with their values in `flat` (weights or gradients), for
/// operations that read their positions in this form.
kernels::SparseMatrix matrix_of(const WeightContext& context, const Tensor& flat,
                                kernels::PositionForm form);

}  // namespace espalier::sparse
