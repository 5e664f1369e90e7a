#pragma once
// The three operations of each storage (registry.h). Private to this folder.
#include "sparse/weight/weight.h"

namespace espalier::sparse {

/// Operands of the operations.
struct WeightParts {
  Store& store;
  const kernels::Kernels& kernels;
  Parameter& parameter;
};

struct Products {
  void (*apply)(Stream&, const WeightParts&, const Weight::Apply&);
  void (*apply_transposed)(Stream&, const WeightParts&, const Weight::ApplyTransposed&);
  void (*accumulate_gradient)(Stream&, const WeightParts&, const Weight::AccumulateGradient&);
};

}  // namespace espalier::sparse
