#include "pruning/kinds/scheduled.h"

#include "src/core/error.h"

namespace espalier::pruning {
namespace {

/// Elements of [first, first + count) that the mask keeps.
int64_t ones_in(const sparse::Mask& mask, int64_t first, int64_t count) {
  int64_t ones = 0;
  for (int64_t i = first; i < first + count; ++i) {
    ones += mask[i] ? 1 : 0;
  }
  return ones;
}

}  // namespace

Candidate candidate_of(const sparse::Parameter& parameter, std::span<const float> values) {
  return {.name = parameter.spec.name,
          .shape = parameter.spec.shape,
          .index = &parameter.index,
          .values = values,
          .parts = parameter.spec.parts};
}

std::vector<sparse::Mask> among_all(const Weights& weights, std::vector<sparse::Mask> chosen) {
  std::vector<sparse::Mask> all = weights.store.masks();
  size_t next = 0;
  for (size_t p = 0; p < all.size(); ++p) {
    if (weights.prunable[p]) {
      all[p] = std::move(chosen[next++]);
    }
  }
  return all;
}

Result prune(const Weights& weights, Settings settings) {
  settings.global_selection = weights.stages;
  const bool needs_values = method_by_name(settings.method).needs_values;
  const auto parameters = weights.store.parameters();
  std::vector<std::vector<float>> values;  // outlive the candidates' views
  std::vector<Candidate> candidates;
  values.reserve(parameters.size());
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (weights.prunable[p]) {
      values.push_back(needs_values ? weights.store.values(parameters[p]) : std::vector<float>());
      candidates.push_back(candidate_of(parameters[p], values.back()));
    }
  }
  Result result = prune(candidates, settings);
  result.masks = among_all(weights, std::move(result.masks));
  return result;
}

Scheduled::Scheduled(RunSettings settings, const Weights& weights)
    : settings_(std::move(settings)),
      weights_(weights),
      schedule_(pruning_schedule_of(settings_.config)) {
  check_pruning_schedule(schedule_);
}

Settings Scheduled::settings_at(int64_t steps) const {
  Settings settings = settings_of(config(), settings_.seed);
  settings.global_selection = weights_.stages;
  settings.sparsity = target(steps);
  return settings;
}

Scheduled::Counts Scheduled::counts_at(int64_t steps) const {
  std::array<int64_t, 5> sums{};
  auto& [size, kept, target, matrices, sparser] = sums;
  const double sparsity = settings_at(steps).sparsity;
  const bool scores = reads_scores(method());
  for (size_t p = 0; p < weights_.prunable.size(); ++p) {
    if (!weights_.prunable[p]) {
      continue;
    }
    const sparse::Parameter& parameter = weights_.store.parameters()[p];
    const int64_t parts = scores ? parameter.spec.parts : 1;
    const int64_t part = parameter.size() / parts;
    const int64_t wanted = kept_count(part, sparsity);
    const bool apart = parts > 1 && !parameter.full();
    const sparse::Mask mask = apart ? parameter.index.mask() : sparse::Mask();
    for (int64_t i = 0; i < parts; ++i) {
      const int64_t here = apart ? ones_in(mask, i * part, part) : parameter.kept() / parts;
      sparser += here < wanted ? 1 : 0;
    }
    size += parameter.size();
    kept += parameter.kept();
    target += parts * wanted;
    matrices += parts;
  }
  if (weights_.stages != nullptr) {
    weights_.stages->sum(sums);
  }
  return {.size = size, .kept = kept, .target = target, .matrices = matrices, .sparser = sparser};
}

std::optional<Proposal> Scheduled::masks_that_suffice(int64_t steps, bool anyway) const {
  if (method().shape != nullptr || (scope_of(config()) == Scope::global && !anyway)) {
    return {};
  }
  const Counts counts = counts_at(steps);
  if (counts.kept == counts.size || counts.kept > counts.target + counts.matrices ||
      (counts.sparser == 0 && !anyway)) {
    return {};
  }
  Proposal present{.masks = weights_.store.masks()};
  if (counts.kept + counts.matrices < counts.target) {
    present.warnings.push_back(
        fmt::format("{} of {} elements are kept already, fewer than the {} of sparsity {}; nothing "
                    "comes back",
                    counts.kept, counts.size, counts.target, settings_at(steps).sparsity));
  }
  return present;
}

Proposal Scheduled::masks_by_run(int64_t steps) {
  if (std::optional<Proposal> present = masks_that_suffice(steps)) {
    return std::move(*present);
  }
  Result result = prune(weights_, settings_at(steps));
  return {.masks = std::move(result.masks), .warnings = std::move(result.warnings)};
}

Proposal Scheduled::masks_of(std::span<const Candidate> candidates,
                             const Settings& settings) const {
  Result result = prune(candidates, settings);
  return {.masks = among_all(weights_, std::move(result.masks)),
          .warnings = std::move(result.warnings)};
}

}  // namespace espalier::pruning
