#include "src/model/layers/batch_norm.h"

#include <numeric>

namespace espalier::model {
namespace {

using Replicas = BatchStatistics::Replicas;

/// The replicas that share statistics; null: there is one, or the pass only plans.
const Replicas* replicas_of(const Pass& pass) {
  return pass.training && !pass.stream.arena().dry() ? pass.batch.replicas : nullptr;
}

/// Pixels that the statistics of x are of. Replicas have as many each.
int64_t pixels(const Pass& pass, const Tensor& x) {
  return x.rows() * (pass.batch.replicas != nullptr ? pass.batch.replicas->count : 1);
}

/// Gathers [a, b] of each replica. Calls body(c, a of each replica, b of each replica) for all c.
template <class Body>
void for_gathered(const Replicas& replicas, std::span<const float> a, std::span<const float> b,
                  const Body& body) {
  std::vector<float> mine(a.begin(), a.end());
  mine.insert(mine.end(), b.begin(), b.end());
  const auto count = static_cast<size_t>(replicas.count);
  std::vector<float> all(mine.size() * count);
  replicas.gather(mine, all);
  std::vector<double> of_a(count);
  std::vector<double> of_b(count);
  for (size_t c = 0; c < a.size(); ++c) {
    for (size_t r = 0; r < count; ++r) {
      of_a[r] = static_cast<double>(all[r * mine.size() + c]);
      of_b[r] = static_cast<double>(all[r * mine.size() + a.size() + c]);
    }
    body(c, of_a, of_b);
  }
}

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

/// The variance of equal parts: the mean of theirs, and the variance of their means.
void share_statistics(const Replicas& replicas, std::span<float> mean, std::span<float> variance) {
  const auto count = static_cast<double>(replicas.count);
  for_gathered(replicas, mean, variance, [&](size_t c, const auto& means, const auto& variances) {
    const double centre = sum_of(means) / count;
    double spread = sum_of(variances);
    for (const double one : means) {
      spread += (one - centre) * (one - centre);
    }
    mean[c] = static_cast<float>(centre);
    variance[c] = static_cast<float>(spread / count);
  });
}

}  // namespace

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
  check(pixels(pass, x) > 1,
        "{}: batch norm cannot train on a micro-batch of one pixel; set train.micro_batch to more "
        "images, or use no norm here",
        name_);
  const Shape channels{channels_};
  const Saved saved{.x = x,
                    .mean = pass.tape.push("norm statistics", DType::fp32, channels),
                    .variance = pass.tape.push("norm statistics", DType::fp32, channels)};
  pass.kernels.batch_norm_statistics(pass.stream,
                                     {.x = x, .mean = saved.mean, .variance = saved.variance});
  if (const Replicas* replicas = replicas_of(pass)) {
    share_statistics(*replicas, saved.mean.span<float>(), saved.variance.span<float>());
  }
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
  if (const Replicas* replicas = replicas_of(pass)) {
    const std::span<float> of_g = sums.span<float>().first(static_cast<size_t>(channels_));
    const std::span<float> of_slope = sums.span<float>().last(static_cast<size_t>(channels_));
    for_gathered(*replicas, of_g, of_slope, [&](size_t c, const auto& g, const auto& slopes) {
      of_g[c] = static_cast<float>(sum_of(g));
      of_slope[c] = static_cast<float>(sum_of(slopes));
    });
  }
  pass.kernels.batch_norm_backward(pass.stream, {.g = dy,
                                                 .x = saved.x,
                                                 .mean = saved.mean,
                                                 .variance = saved.variance,
                                                 .weight = weight_->dense,
                                                 .sums = sums,
                                                 .dx = dx,
                                                 .count = pixels(pass, saved.x)});
  pass.kernels.batch_norm_average(pass.stream, {.mean = saved.mean,
                                                .variance = saved.variance,
                                                .average_mean = mean_->dense,
                                                .average_variance = variance_->dense,
                                                .dmean = store_->full_gradient(*mean_),
                                                .dvariance = store_->full_gradient(*variance_),
                                                .count = pixels(pass, saved.x),
                                                .share = pass.batch.share,
                                                .accumulate = pass.accumulate});
}

}  // namespace espalier::model
