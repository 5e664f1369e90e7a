#include "src/train/pruner.h"

#include <algorithm>

#include "io/checkpoint.h"
#include "parallel/digest.h"
#include "pruning/prunable.h"
#include "src/train/snapshot.h"

namespace espalier::train {
namespace {

/// The masks of a checkpoint, cut to what is kept now.
std::vector<sparse::Mask> masks_from_file(const std::string& file, sparse::Store& store) {
  const io::CheckpointReader reader(file);
  std::vector<sparse::Mask> masks = store.masks();
  for (size_t p = 0; p < masks.size(); ++p) {
    const auto& spec = store.parameters()[p].spec;
    check(reader.has(spec.name), "{} has no parameter \"{}\": masks must come from the same model",
          file, spec.name);
    const io::ParameterInfo info = reader.info(spec.name);
    check(info.shape == spec.shape, "{}: parameter \"{}\" has shape {}, this model's has {}", file,
          spec.name, info.shape.text(), spec.shape.text());
    const sparse::Mask wanted = read_mask(reader, spec.name);
    for (int64_t i = 0; i < masks[p].size(); ++i) {
      if (masks[p][i] && !wanted[i]) {
        masks[p].set(i, false);
      }
    }
  }
  return masks;
}

}  // namespace

pruning::Settings settings_of(const io::PruningConfig& config, uint64_t seed) {
  return {.method = config.method,
          .sparsity = config.method == "nm" ? 0 : config.sparsity,  // nm follows from n and m
          .scope = pruning::scope_by_name(config.scope),
          .seed = seed,
          .n = static_cast<int>(config.n),
          .m = static_cast<int>(config.m),
          .block = static_cast<int>(config.block)};
}

pruning::Timing timing_of(const io::PruningConfig& config) {
  if (config.gradual()) {
    return {.from_step = config.from_step,
            .to_step = config.to_step,
            .every = config.every,
            .initial_sparsity = 0,
            .final_sparsity = config.sparsity};
  }
  const double sparsity = config.method == "nm"
                              ? 1.0 - static_cast<double>(config.n) / static_cast<double>(config.m)
                              : config.sparsity;
  return pruning::one_shot(std::max<int64_t>(config.at_step, 0), sparsity);
}

std::vector<bool> prunable_of(std::span<const sparse::ParameterSpec> specs,
                              const io::PruningConfig& config) {
  std::vector<pruning::ParameterInfo> infos;
  for (const sparse::ParameterSpec& spec : specs) {
    infos.push_back({spec.name, spec.shape, spec.prunable});
  }
  return pruning::prunable(infos, {.include = {}, .exclude = config.exclude});
}

std::vector<bool> prunable_of(const sparse::Store& store, const io::PruningConfig& config) {
  return prunable_of(specs_of(store), config);
}

pruning::Result compute_masks(sparse::Store& store, const std::vector<bool>& prunable,
                              const pruning::Settings& settings) {
  const auto parameters = store.parameters();
  std::vector<std::vector<float>> values;  // outlive the candidates' views
  std::vector<pruning::Candidate> candidates;
  values.reserve(parameters.size());
  const bool needs_values = pruning::method_by_name(settings.method).needs_values;
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!prunable[p]) {
      continue;
    }
    std::span<const float> packed;
    if (needs_values) {
      packed = values.emplace_back(store.values(parameters[p]));
    }
    candidates.push_back({.name = parameters[p].spec.name,
                          .shape = parameters[p].spec.shape,
                          .index = &parameters[p].index,
                          .values = packed});
  }
  pruning::Result chosen = pruning::prune(candidates, settings);
  pruning::Result all{.masks = store.masks(), .warnings = std::move(chosen.warnings)};
  size_t next = 0;
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (prunable[p]) {
      all.masks[p] = std::move(chosen.masks[next++]);
    }
  }
  return all;
}

Pruner::Pruner(const io::Config& config, sparse::Store& store)
    : config_(config.pruning),
      seed_(static_cast<uint64_t>(config.train.seed)),
      store_(store),
      prunable_(prunable_of(store, config.pruning)),
      enabled_(config.pruning.method != "none") {
  if (enabled_) {
    timing_ = timing_of(config_);
    pruning::check_timing(timing_);
  }
}

bool Pruner::due(int64_t steps) const {
  if (!enabled_) {
    return false;
  }
  return config_.method == "file" ? steps == timing_.from_step : pruning::prune_at(timing_, steps);
}

double Pruner::target(int64_t steps) const {
  return enabled_ ? pruning::target_sparsity(timing_, steps) : 0.0;
}

pruning::Result Pruner::masks_for(int64_t steps) {
  if (config_.method == "file") {
    return {.masks = masks_from_file(config_.file, store_), .warnings = {}};
  }
  pruning::Settings settings = settings_of(config_, seed_);
  settings.sparsity = target(steps);
  return compute_masks(store_, prunable_, settings);
}

std::vector<std::string> Pruner::prune(int64_t steps, parallel::Communicator& comm) {
  pruning::Result result = masks_for(steps);
  compare_masks(comm, [&](size_t p) { return result.masks[p].digest(); });
  store_.set_masks(result.masks);
  return result.warnings;
}

void Pruner::compare(parallel::Communicator& comm) const {
  compare_masks(comm, [&](size_t p) { return store_.parameters()[p].index.mask().digest(); });
}

void Pruner::compare_masks(parallel::Communicator& comm,
                           const std::function<uint64_t(size_t)>& digest) const {
  std::vector<std::string> names;
  std::vector<uint64_t> digests;
  for (size_t p = 0; p < prunable_.size(); ++p) {
    names.push_back(store_.parameters()[p].spec.name + " (mask)");
    digests.push_back(digest(p));
  }
  parallel::compare_digests(comm, names, digests);
}

Sparsity Pruner::sparsity() const {
  Sparsity sum;
  for (size_t p = 0; p < prunable_.size(); ++p) {
    if (prunable_[p]) {
      sum.prunable += store_.parameters()[p].size();
      sum.prunable_kept += store_.parameters()[p].kept();
    }
  }
  return sum;
}

}  // namespace espalier::train
