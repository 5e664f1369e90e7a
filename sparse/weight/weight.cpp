#include "sparse/weight/weight.h"

namespace espalier::sparse {
namespace {

const Products& products_of(const Parameter& parameter) {
  return *effective_storage(parameter).products;
}

}  // namespace

const Storage& effective_storage(const Parameter& parameter) {
  if (parameter.full()) {
    return Storage::dense;
  }
  return parameter.storage.whole_blocks && !parameter.blocks ? Storage::sparse : parameter.storage;
}

void Weight::apply(Stream& stream, const Apply& args) {
  if (args.few_rows && apply_to_few_rows(stream, {store_, kernels_, parameter_}, args)) {
    return;
  }
  products_of(parameter_).apply(stream, {store_, kernels_, parameter_}, args);
}

void Weight::apply_transposed(Stream& stream, const ApplyTransposed& args) {
  require(!args.accumulate || !args.preactivation, "the slope multiplies the product alone");
  products_of(parameter_).apply_transposed(stream, {store_, kernels_, parameter_}, args);
}

void Weight::accumulate_gradient(Stream& stream, const AccumulateGradient& args) {
  if (store_.probes(parameter_)) {
    require(!args.accumulate, "a probe reads the whole gradient at once", parameter_.spec.name);
    const Shape& shape = parameter_.spec.shape;
    const Tensor gradient = args.continues ? store_.panels().taken(DType::fp32, shape)
                                           : store_.panels().take(DType::fp32, shape);
    kernels_.gemm(stream, {.a = args.dy,
                           .b = args.x,
                           .c = gradient,
                           .transpose_a = true,
                           .accumulate = args.continues,
                           .row_sums = args.bias_gradient,
                           .accumulate_sums = args.continues});
    if (!args.unfinished) {
      store_.gradient_probe()(parameter_, gradient);
    }
    return;
  }
  AccumulateGradient sum = args;
  sum.accumulate = args.accumulate || args.continues;
  products_of(parameter_).accumulate_gradient(stream, {store_, kernels_, parameter_}, sum);
}

bool Weight::is_dense() const { return effective_storage(parameter_).dense_products; }

Tensor Weight::dense() const {
  require(is_dense(), "a storage with a dense matrix", parameter_.spec.name);
  return parameter_.full() || parameter_.storage.dense_copy ? parameter_.dense
                                                            : store_.expand(parameter_);
}

void Weight::accumulate_computed(Stream& stream, bool accumulate,
                                 const std::function<void(const Tensor& gradient)>& compute) {
  const Shape& shape = parameter_.spec.shape;
  const bool probed = store_.probes(parameter_);
  require(!probed || !accumulate, "a probe reads the whole gradient at once", parameter_.spec.name);
  if (parameter_.full() && !probed && !accumulate && store_.gradient().dtype == DType::fp32) {
    store_.panels().reserve(shape.count());  // a pass that accumulates needs it: plans see only one
    compute(store_.full_gradient(parameter_));
    return;
  }
  const Tensor gradient = store_.panels().take(DType::fp32, shape);
  compute(gradient);
  if (probed) {
    store_.gradient_probe()(parameter_, gradient);
  } else if (parameter_.full()) {
    kernels_.cast(stream,
                  {.x = gradient, .y = store_.full_gradient(parameter_), .accumulate = accumulate});
  } else {
    const Tensor packed = store_.part(store_.gradient(), parameter_);
    const kernels::Positions positions = store_.positions(parameter_);
    store_.panels().gather([&](Stream& with) {
      kernels_.gather(
          with,
          {.dense = gradient, .packed = packed, .positions = positions, .accumulate = accumulate});
    });
  }
}

bool Weight::is_sparse() const {
  return effective_storage(parameter_).products == Storage::sparse.products;
}

bool Weight::probed() const { return store_.probes(parameter_); }

kernels::SparseMatrix Weight::sparse(kernels::PositionForm form) const {
  return matrix_of({store_, kernels_, parameter_}, store_.value(), form);
}

kernels::SparseMatrix Weight::sparse_gradient() const {
  return matrix_of({store_, kernels_, parameter_}, store_.gradient(),
                   kernels::PositionForm::sampled);
}

}  // namespace espalier::sparse
