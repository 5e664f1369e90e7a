#pragma once
// The three operations of each storage (registry.h). Private to this folder.
#include "sparse/weight/weight.h"

namespace espalier::sparse {

/// Operands of the operations.
struct WeightContext {
  Store& store;
  const kernels::Kernels& kernels;
  Parameter& parameter;
};

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
