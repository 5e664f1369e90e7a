// Products with few rows, of new tokens in generation: W is read once, in the form in which the
// store holds it. Pruned weights without a dense copy are multiplied element by element, whatever
// their storage: the store keeps their columns by rows (StoreOptions::keep_rows).
#include "sparse/weight/weight.h"

namespace espalier::sparse {
namespace {

template <class Args>
Args arguments(const Weight::Apply& apply) {
  Args args;
  args.x = apply.x;
  args.y = apply.y;
  args.bias = apply.bias;
  args.activation = apply.activation;
  args.activated = apply.activated;
  args.accumulate = static_cast<bool>(apply.addend);
  return args;
}

}  // namespace

bool apply_to_few_rows(Stream& stream, const WeightContext& context, const Weight::Apply& args) {
  const Parameter& parameter = context.parameter;
  const bool dense = static_cast<bool>(parameter.dense);
  const bool listed = !dense && parameter.tiles != nullptr && context.store.options().keep_rows;
  if (context.kernels.few_rows == nullptr || (!dense && !listed)) {
    return false;
  }
  if (args.addend) {  // products accumulate in place
    context.kernels.cast(stream, {.x = args.addend, .y = args.y});
  }
  if (dense) {
    auto product = arguments<kernels::FewRowsArgs>(args);
    product.weight = parameter.dense;
    context.kernels.few_rows(stream, product);
  } else {
    auto product = arguments<kernels::SparseFewRowsArgs>(args);
    product.weight = matrix_of(context, context.store.value(), kernels::PositionForm::rows);
    context.kernels.sparse_few_rows(stream, product);
  }
  return true;
}

}  // namespace espalier::sparse
