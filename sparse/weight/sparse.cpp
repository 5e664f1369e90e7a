// Storages "sparse", "tiles" and "block": products of kept elements, or of whole blocks; no dense
// weight or gradient exists.
#include "sparse/weight/weight.h"

namespace espalier::sparse {
namespace {

using kernels::Kernels;
using kernels::PositionForm;

/// A form of the pruned matrix: its products, and the weight or its gradient (`flat`) in that form.
struct Elements {
  static constexpr auto kSpmm = &Kernels::spmm;
  static constexpr auto kSpmmTransposed = &Kernels::spmm_transposed;
  static constexpr auto kSddmm = &Kernels::sddmm;
  static kernels::SparseMatrix matrix(const WeightContext& context, const Tensor& flat,
                                      PositionForm form) {
    return matrix_of(context, flat, form);
  }
};
struct Blocks {
  static constexpr auto kSpmm = &Kernels::block_spmm;
  static constexpr auto kSpmmTransposed = &Kernels::block_spmm_transposed;
  static constexpr auto kSddmm = &Kernels::block_sddmm;
  static kernels::BlockMatrix matrix(const WeightContext& context, const Tensor& flat,
                                     PositionForm /*form*/) {
    return context.parameter.blocks.matrix(context.store.part(flat, context.parameter));
  }
};

template <class Form>
void apply(Stream& stream, const WeightContext& context, const Weight::Apply& args) {
  if (args.addend) {  // products accumulate in place
    context.kernels.cast(stream, {.x = args.addend, .y = args.y});
  }
  (context.kernels.*Form::kSpmm)(
      stream, {.weight = Form::matrix(context, context.store.value(), PositionForm::product),
               .x = args.x,
               .y = args.y,
               .bias = args.bias,
               .activation = args.activation,
               .activated = args.activated,
               .accumulate = static_cast<bool>(args.addend)});
}

template <class Form>
void apply_transposed(Stream& stream, const WeightContext& context,
                      const Weight::ApplyTransposed& args) {
  (context.kernels.*Form::kSpmmTransposed)(
      stream, {.weight = Form::matrix(context, context.store.value(), PositionForm::transposed),
               .dy = args.dy,
               .dx = args.dx,
               .activation = args.activation,
               .preactivation = args.preactivation,
               .accumulate = args.accumulate});
}

template <class Form>
void accumulate_gradient(Stream& stream, const WeightContext& context,
                         const Weight::AccumulateGradient& args) {
  (context.kernels.*Form::kSddmm)(
      stream, {.weight = Form::matrix(context, context.store.gradient(), PositionForm::sampled),
               .dy = args.dy,
               .x = args.x,
               .accumulate = args.accumulate});
  if (args.bias_gradient) {
    context.kernels.column_sum(
        stream, {.x = args.dy, .out = args.bias_gradient, .accumulate = args.accumulate});
  }
}

template <class Form>
constexpr Products kProducts{apply<Form>, apply_transposed<Form>, accumulate_gradient<Form>};

}  // namespace

kernels::SparseMatrix matrix_of(const WeightContext& context, const Tensor& flat,
                                PositionForm form) {
  Parameter& parameter = context.parameter;
  const bool kept = form == PositionForm::rows || parameter.storage.keeps_forms;
  kernels::KeptForms* const forms = kept ? parameter.tiles.get() : nullptr;
  const bool made = forms != nullptr && parameter.tiles->made(form);
  return {.rows = parameter.spec.shape.rows(),
          .cols = parameter.spec.shape.cols(),
          .values = context.store.part(flat, parameter),
          .positions = made
                           ? kernels::Positions{.size = parameter.size(), .count = parameter.kept()}
                           : context.store.positions(parameter),
          .csr = parameter.csr.view(),
          .forms = forms};
}

constinit const Storage Storage::sparse{.name = "sparse",
                                        .help = "kept values; products of kept elements",
                                        .products = &kProducts<Elements>};

constinit const Storage Storage::tiles{
    .name = "tiles",
    .help =
        "on a CPU: sparse, and keeps what each product makes from the mask; faster, mostly "
        "with small micro-batches, and takes 8 bytes a kept element",
    .keeps_forms = true,
    .products = &kProducts<Elements>};

constinit const Storage Storage::block{.name = "block",
                                       .help = "kept values; products of whole blocks",
                                       .whole_blocks = true,
                                       .products = &kProducts<Blocks>};

}  // namespace espalier::sparse
