#include "src/model/layers/batch_norm.h"

namespace espalier::model {

std::vector<sparse::ParameterSpec> BatchNorm::parameters() const {
  const Shape shape{channels_};
  return {{.name = name_ + ".weight",
           .shape = shape,
           .initial = sparse::Initial::ones,
           .width = channels_},
          {.name = name_ + ".bias", .shape = shape, .width = channels_},
          {.name = name_ + ".mean", .shape = shape, .average = true},
          {.name = name_ + ".variance",
           .shape = shape,
           .initial = sparse::Initial::ones,
           .average = true}};
}

void BatchNorm::bind(sparse::Store& store) {
  store_ = &store;
  weight_ = &store.find(name_ + ".weight");
  bias_ = &store.find(name_ + ".bias");
  mean_ = &store.find(name_ + ".mean");
  variance_ = &store.find(name_ + ".variance");
}

BatchNorm::Saved BatchNorm::prepare(Pass& pass, const Tensor& x) const {
  if (!pass.training) {
    return {.x = x, .mean = mean_->dense, .variance = variance_->dense};
  }
  check(x.rows() > 1,
        "{}: batch norm cannot train on a micro-batch of one pixel; set train.micro_batch to more "
        "images, or use no norm here",
        name_);
  const Shape channels{channels_};
  const Saved saved{.x = x,
                    .mean = pass.tape.push("norm statistics", DType::fp32, channels),
                    .variance = pass.tape.push("norm statistics", DType::fp32, channels)};
  pass.kernels.batch_norm_statistics(pass.stream,
                                     {.x = x, .mean = saved.mean, .variance = saved.variance});
  return saved;
}

void BatchNorm::forward(Pass& pass, const Saved& saved, const Apply& apply) const {
  pass.kernels.batch_norm(pass.stream, {.x = saved.x,
                                        .mean = saved.mean,
                                        .variance = saved.variance,
                                        .weight = weight_->dense,
                                        .bias = bias_->dense,
                                        .addend = apply.addend,
                                        .y = apply.y,
                                        .rectify = apply.rectify});
}

void BatchNorm::backward(Pass& pass, const Saved& saved, const Tensor& y, const Tensor& dy,
                         const Tensor& dx) const {
  const Tape::Scope scope(pass.tape);
  const Tensor sums = pass.tape.push("norm sums", DType::fp32, Shape{2, channels_});
  pass.kernels.batch_norm_sums(pass.stream, {.dy = dy,
                                             .x = saved.x,
                                             .y = y,
                                             .mean = saved.mean,
                                             .variance = saved.variance,
                                             .sums = sums,
                                             .dweight = store_->full_gradient(*weight_),
                                             .dbias = store_->full_gradient(*bias_),
                                             .accumulate = pass.accumulate});
  pass.kernels.batch_norm_backward(pass.stream, {.g = dy,
                                                 .x = saved.x,
                                                 .mean = saved.mean,
                                                 .variance = saved.variance,
                                                 .weight = weight_->dense,
                                                 .sums = sums,
                                                 .dx = dx,
                                                 .count = saved.x.rows()});
  pass.kernels.batch_norm_average(pass.stream, {.mean = saved.mean,
                                                .variance = saved.variance,
                                                .average_mean = mean_->dense,
                                                .average_variance = variance_->dense,
                                                .dmean = store_->full_gradient(*mean_),
                                                .dvariance = store_->full_gradient(*variance_),
                                                .count = saved.x.rows(),
                                                .share = pass.batch_share,
                                                .accumulate = pass.accumulate});
}

}  // namespace espalier::model
