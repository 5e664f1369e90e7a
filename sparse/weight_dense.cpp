// Storage "dense": compute reads the resident dense copy, and only the gradient is compressed.
#include "sparse/weight_storages.h"

namespace espalier::sparse {

void dense_apply(Stream& stream, const kernels::Kernels& kernels, const Tensor& weight,
                 const Weight::Apply& args) {
  kernels.gemm(stream, {.a = args.x,
                        .b = weight,
                        .c = args.y,
                        .bias = args.bias,
                        .transpose_b = true,
                        .accumulate = args.accumulate});
  if (args.activated) {
    kernels.activation(stream, {.kind = args.activation, .x = args.y, .y = args.activated});
  }
}

void dense_apply_transposed(Stream& stream, const kernels::Kernels& kernels, const Tensor& weight,
                            const Weight::ApplyTransposed& args) {
  kernels.gemm(
      stream, {.a = args.dy, .b = weight, .c = args.dx, .bias = {}, .accumulate = args.accumulate});
  if (args.preactivation) {
    kernels.activation_backward(
        stream, {.kind = args.activation, .dy = args.dx, .x = args.preactivation, .dx = args.dx});
  }
}

void dense_accumulate_gradient(Stream& stream, const WeightParts& parts,
                               const Weight::AccumulateGradient& args) {
  Store& store = parts.store;
  const bool full = parts.parameter.full();
  const Tensor target =
      full ? store.full_gradient(parts.parameter) : store.dense_gradient(parts.parameter);
  parts.kernels.gemm(stream, {.a = args.dy,
                              .b = args.x,
                              .c = target,
                              .bias = {},
                              .transpose_a = true,
                              .accumulate = full && args.accumulate});
  if (!full) {
    parts.kernels.gather(stream, {.dense = target,
                                  .packed = store.part(store.gradient(), parts.parameter),
                                  .positions = store.positions(parts.parameter),
                                  .accumulate = args.accumulate});
  }
}

namespace {

void apply(Stream& stream, const WeightParts& parts, const Weight::Apply& args) {
  dense_apply(stream, parts.kernels, parts.parameter.dense, args);
}

void apply_transposed(Stream& stream, const WeightParts& parts,
                      const Weight::ApplyTransposed& args) {
  dense_apply_transposed(stream, parts.kernels, parts.parameter.dense, args);
}

}  // namespace

constinit const Verbs kDenseVerbs{apply, apply_transposed, dense_accumulate_gradient};

}  // namespace espalier::sparse
