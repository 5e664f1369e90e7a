// Storage "block": products of whole blocks; no dense weight or gradient exists.
#include "sparse/weight/verbs.h"

namespace espalier::sparse {
namespace {

/// The weight, or its gradient, with the blocks of the parameter.
kernels::BlockMatrix matrix(const WeightParts& parts, const Tensor& flat) {
  return parts.parameter.blocks.matrix(parts.store.part(flat, parts.parameter));
}

void apply(Stream& stream, const WeightParts& parts, const Weight::Apply& args) {
  parts.kernels.block_spmm(stream, {.weight = matrix(parts, parts.store.value()),
                                    .x = args.x,
                                    .y = args.y,
                                    .bias = args.bias,
                                    .activation = args.activation,
                                    .activated = args.activated,
                                    .accumulate = copy_addend(stream, parts.kernels, args)});
}

void apply_transposed(Stream& stream, const WeightParts& parts,
                      const Weight::ApplyTransposed& args) {
  parts.kernels.block_spmm_transposed(stream, {.weight = matrix(parts, parts.store.value()),
                                               .dy = args.dy,
                                               .dx = args.dx,
                                               .activation = args.activation,
                                               .preactivation = args.preactivation,
                                               .accumulate = args.accumulate});
}

void accumulate_gradient(Stream& stream, const WeightParts& parts,
                         const Weight::AccumulateGradient& args) {
  parts.kernels.block_sddmm(stream, {.weight = matrix(parts, parts.store.gradient()),
                                     .dy = args.dy,
                                     .x = args.x,
                                     .accumulate = args.accumulate});
  sum_bias_gradient(stream, parts.kernels, args);
}

constexpr Verbs kVerbs{apply, apply_transposed, accumulate_gradient};

}  // namespace

constinit const Storage Storage::block{.name = "block",
                                       .help = "kept values; products of whole blocks",
                                       .whole_blocks = true,
                                       .verbs = &kVerbs};

}  // namespace espalier::sparse
