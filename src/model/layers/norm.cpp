#include "src/model/layers/norm.h"

namespace espalier::model {
namespace {

constexpr NormKind kNorms[]{
    {.name = "layernorm", .help = "(x - mean) / deviation * weight + bias", .centred = true},
    {.name = "rmsnorm", .help = "x / root mean square * weight", .centred = false}};

}  // namespace

Registry<NormKind> norms() { return pointers_into<kNorms>(); }

Norm::Norm(std::string_view kind, std::string name, int64_t width, sparse::Scaling scaling,
           double epsilon)
    : kind_(find(norms(), "model.norm", kind)),
      name_(std::move(name)),
      width_(width),
      scaling_(scaling),
      epsilon_(static_cast<float>(epsilon)) {}

std::vector<sparse::ParameterSpec> Norm::parameters() const {
  std::vector<sparse::ParameterSpec> specs{{.name = name_ + ".weight",
                                            .shape = Shape{width_},
                                            .initial = sparse::Initial::ones,
                                            .scaling = scaling_,
                                            .width = width_}};
  if (kind_.centred) {
    specs.push_back(
        {.name = name_ + ".bias", .shape = Shape{width_}, .scaling = scaling_, .width = width_});
  }
  return specs;
}

void Norm::bind(sparse::Store& store) {
  store_ = &store;
  weight_ = &store.find(name_ + ".weight");
  bias_ = kind_.centred ? &store.find(name_ + ".bias") : nullptr;
}

Norm::Saved Norm::prepare(Pass& pass, const Tensor& x) const {
  const Shape rows{x.rows()};
  Saved saved{.x = x, .mean = {}, .rstd = {}};
  if (kind_.centred) {
    saved.mean = pass.tape.push("norm statistics", DType::fp32, rows);
  }
  saved.rstd = pass.tape.push("norm statistics", DType::fp32, rows);
  return saved;
}

void Norm::forward(Pass& pass, const Saved& saved, const Tensor& y) const {
  pass.kernels.norm(pass.stream, {.x = saved.x,
                                  .weight = weight_->dense,
                                  .bias = bias_ != nullptr ? bias_->dense : Tensor(),
                                  .y = y,
                                  .mean = saved.mean,
                                  .rstd = saved.rstd,
                                  .epsilon = epsilon_});
}

void Norm::backward(Pass& pass, const Saved& saved, const Tensor& dy, const Tensor& dx,
                    const Tensor& rounded) const {
  pass.kernels.norm_backward(pass.stream,
                             {.dy = dy,
                              .x = saved.x,
                              .weight = weight_->dense,
                              .mean = saved.mean,
                              .rstd = saved.rstd,
                              .dx = dx,
                              .dweight = store_->full_gradient(*weight_),
                              .dbias = bias_ != nullptr ? store_->full_gradient(*bias_) : Tensor(),
                              .accumulate = pass.accumulate,
                              .rounded = rounded});
}

}  // namespace espalier::model
