#pragma once
// The three verbs of each storage (registry.h), and the functions that storages share. Private to
// this folder.
#include "sparse/weight/weight.h"

namespace espalier::sparse {

/// Operands of the verbs.
struct WeightParts {
  Store& store;
  const kernels::Kernels& kernels;
  Parameter& parameter;
};

struct Verbs {
  void (*apply)(Stream&, const WeightParts&, const Weight::Apply&);
  void (*apply_transposed)(Stream&, const WeightParts&, const Weight::ApplyTransposed&);
  void (*accumulate_gradient)(Stream&, const WeightParts&, const Weight::AccumulateGradient&);
};

/// The first two verbs with a given dense W [N, K], epilogues included, and dW by a dense product.
void dense_apply(Stream& stream, const WeightParts& parts, const Tensor& weight,
                 const Weight::Apply& args);
void dense_apply_transposed(Stream& stream, const WeightParts& parts, const Tensor& weight,
                            const Weight::ApplyTransposed& args);
void dense_accumulate_gradient(Stream& stream, const WeightParts& parts,
                               const Weight::AccumulateGradient& args);

/// For products that accumulate into y: copies the addend, if any, to y; returns whether there was
/// one.
inline bool copy_addend(Stream& stream, const kernels::Kernels& kernels,
                        const Weight::Apply& args) {
  if (args.addend) {
    kernels.cast(stream, {.x = args.addend, .y = args.y});
  }
  return static_cast<bool>(args.addend);
}

/// args.bias_gradient, if any, for products that do not compute it.
inline void sum_bias_gradient(Stream& stream, const kernels::Kernels& kernels,
                              const Weight::AccumulateGradient& args) {
  if (args.bias_gradient) {
    kernels.column_sum(stream,
                       {.x = args.dy, .out = args.bias_gradient, .accumulate = args.accumulate});
  }
}

}  // namespace espalier::sparse
