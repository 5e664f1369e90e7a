#include "src/model/layer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace espalier::model {
namespace {

constexpr std::array<std::string_view, 3> kRecompute{"none", "selective", "full"};

}  // namespace

std::span<const std::string_view> recompute_names() { return kRecompute; }

std::string_view name_of(Recompute recompute) {
  return kRecompute.at(static_cast<size_t>(recompute));
}

Recompute recompute_by_name(std::string_view name) {
  const auto* found = std::ranges::find(kRecompute, name);
  check(found != kRecompute.end(), "unknown recompute \"{}\"; there are {}", name,
        fmt::join(kRecompute, ", "));
  return static_cast<Recompute>(found - kRecompute.begin());
}

TensorSpec Layer::output(int64_t /*samples*/, DType /*dtype*/) const {
  throw Bug(fmt::format("layer {} is the last one: it has no output", name()));
}

void Layer::replay(Pass& /*pass*/, const Tensor& /*x*/) {
  throw Bug(fmt::format("layer {} has no replay", name()));
}

Tensor Layer::logits(Pass& /*pass*/, const Tensor& /*x*/) {
  throw Bug(fmt::format("layer {} is not the last one: it has no logits", name()));
}

void compute_losses(Pass& pass, int64_t first, const Tensor& logits, const Tensor& dlogits) {
  const int64_t rows = logits.rows();
  const Losses& losses = pass.losses;
  if (losses.distillation == nullptr || !dlogits) {
    pass.kernels.cross_entropy(
        pass.stream,
        {.logits = logits,
         .targets = losses.targets.elements(first, rows),
         .losses = losses.values.elements(first, rows),
         .dlogits = dlogits,
         .scale = losses.scale,
         .smoothing = losses.smoothing,
         .target_ranks =
             losses.target_ranks ? losses.target_ranks.elements(first, rows) : Tensor()});
    return;
  }
  const DistillationTarget& by = *losses.distillation;
  pass.kernels.distillation(pass.stream, {.logits = logits,
                                          .teacher = by.logits(first, rows),
                                          .targets = losses.targets.elements(first, rows),
                                          .losses = losses.values.elements(first, rows),
                                          .teacher_losses = by.losses.elements(first, rows),
                                          .dlogits = dlogits,
                                          .weight = by.weight,
                                          .temperature = by.temperature,
                                          .scale = losses.scale});
}

std::vector<sparse::ParameterSpec> parameters_of(std::span<const std::unique_ptr<Layer>> layers) {
  std::vector<sparse::ParameterSpec> all;
  for (const auto& layer : layers) {
    std::ranges::move(layer->parameters(), std::back_inserter(all));
  }
  return all;
}

}  // namespace espalier::model
