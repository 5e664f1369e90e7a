// Storage "dense": compute reads the resident dense copy, and only the gradient is compressed.
#include "sparse/weight.h"

namespace espalier::sparse {
namespace {

class DenseWeight final : public Weight {
 public:
  DenseWeight(Store& store, const kernels::Kernels& kernels, Parameter& parameter)
      : store_(store), kernels_(kernels), parameter_(parameter) {}

  void apply(Stream& stream, const Apply& args) override {
    kernels_.gemm(stream, {.a = args.x,
                           .b = parameter_.dense,
                           .c = args.y,
                           .bias = args.bias,
                           .transpose_b = true,
                           .accumulate = args.accumulate});
  }

  void apply_transposed(Stream& stream, const ApplyTransposed& args) override {
    kernels_.gemm(stream, {.a = args.dy,
                           .b = parameter_.dense,
                           .c = args.dx,
                           .bias = {},
                           .accumulate = args.accumulate});
  }

  void accumulate_gradient(Stream& stream, const AccumulateGradient& args) override {
    const bool full = parameter_.index.encoding() == Encoding::full;
    const Tensor target =
        full ? store_.full_gradient(parameter_) : store_.dense_gradient(parameter_);
    kernels_.gemm(stream, {.a = args.dy,
                           .b = args.x,
                           .c = target,
                           .bias = {},
                           .transpose_a = true,
                           .accumulate = full && args.accumulate});
    if (!full) {
      kernels_.gather(stream, {.dense = target,
                               .packed = store_.part(store_.gradient(), parameter_),
                               .positions = store_.positions(parameter_),
                               .accumulate = args.accumulate});
    }
  }

 private:
  Store& store_;
  const kernels::Kernels& kernels_;
  Parameter& parameter_;
};

}  // namespace

std::unique_ptr<Weight> make_weight(Store& store, const kernels::Kernels& kernels,
                                    Parameter& parameter) {
  return std::make_unique<DenseWeight>(store, kernels, parameter);
}

}  // namespace espalier::sparse
