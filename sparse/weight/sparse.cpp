// Storage "sparse": products over kept elements; no dense weight or gradient exists.
#include "sparse/weight/verbs.h"

namespace espalier::sparse {
namespace {

/// The weight, or its gradient, with the pattern of the parameter.
kernels::SparseMatrix matrix(const WeightParts& parts, const Tensor& flat) {
  Parameter& parameter = parts.parameter;
  return {.rows = parameter.spec.shape.rows(),
          .cols = parameter.spec.shape.cols(),
          .values = parts.store.part(flat, parameter),
          .positions = parts.store.positions(parameter),
          .csr = parameter.csr.view()};
}

void apply(Stream& stream, const WeightParts& parts, const Weight::Apply& args) {
  parts.kernels.spmm(stream, {.weight = matrix(parts, parts.store.value()),
                              .x = args.x,
                              .y = args.y,
                              .bias = args.bias,
                              .activation = args.activation,
                              .activated = args.activated,
                              .accumulate = copy_addend(stream, parts.kernels, args)});
}

void apply_transposed(Stream& stream, const WeightParts& parts,
                      const Weight::ApplyTransposed& args) {
  parts.kernels.spmm_transposed(stream, {.weight = matrix(parts, parts.store.value()),
                                         .dy = args.dy,
                                         .dx = args.dx,
                                         .activation = args.activation,
                                         .preactivation = args.preactivation,
                                         .accumulate = args.accumulate});
}

void accumulate_gradient(Stream& stream, const WeightParts& parts,
                         const Weight::AccumulateGradient& args) {
  parts.kernels.sddmm(stream, {.weight = matrix(parts, parts.store.gradient()),
                               .dy = args.dy,
                               .x = args.x,
                               .accumulate = args.accumulate});
  sum_bias_gradient(stream, parts.kernels, args);
}

constexpr Verbs kVerbs{apply, apply_transposed, accumulate_gradient};

}  // namespace

constinit const Storage Storage::sparse{
    .name = "sparse", .help = "kept values; products of kept elements", .verbs = &kVerbs};

}  // namespace espalier::sparse
