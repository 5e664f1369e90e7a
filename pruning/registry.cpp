#include "pruning/registry.h"

#include <algorithm>
#include <array>
#include <utility>

#include "pruning/kinds/kinds.h"
#include "pruning/selection.h"

namespace espalier::pruning {

extern const Method kMagnitude, kRandom, kGroups, kBlocks, kRigl, kSet, kSnip, kGrasp, kMovement,
    kElsa, kWanda, kSparseGpt, kEarlyBird;

namespace {

constexpr Method kNone{
    .name = "none",
    .help = "masks stay as they are",
    .run =
        [](std::span<const Candidate> candidates, const Settings&) {
          return Result{.masks = current_masks(candidates), .warnings = {}};
        },
    .needs_values = false,
};

/// Runs read the masks (RunSettings::masks_of_file).
constexpr Method kFile{
    .name = "file",
    .help = "the masks of pruning.file",
    .needs_values = false,
    .check_config =
        [](const io::PruningConfig& config) {
          check(!config.gradual(),
                "pruning.method = \"file\" cannot prune gradually, because its masks are fixed; "
                "set pruning.at_step instead of from_step and to_step");
        },
};

}  // namespace

Registry<Method> methods() {
  static constexpr std::array kMethods{&kNone,     &kMagnitude, &kRandom, &kGroups,    &kBlocks,
                                       &kFile,     &kRigl,      &kSet,    &kSnip,      &kGrasp,
                                       &kMovement, &kElsa,      &kWanda,  &kSparseGpt, &kEarlyBird};
  return kMethods;
}

const Method& method_by_name(std::string_view name) {
  return find(methods(), "pruning method", name);
}

const Method& method_of(const io::PruningConfig& config) { return method_by_name(config.method); }

double sparsity_of(const io::PruningConfig& config) {
  const Method& method = method_of(config);
  return method.sparsity != nullptr ? method.sparsity(config) : config.sparsity;
}

Scope scope_of(const io::PruningConfig& config) {
  return config.scope == "auto" ? method_of(config).scope : scope_by_name(config.scope);
}

Settings settings_of(const io::PruningConfig& config, uint64_t seed) {
  return {.method = config.method,
          .sparsity = method_of(config).sparsity != nullptr ? 0 : config.sparsity,
          .scope = scope_of(config),
          .seed = seed,
          .n = static_cast<int>(config.n),
          .m = static_cast<int>(config.m),
          .block = static_cast<int>(config.block)};
}

bool works_at_rest(const Method& method) {
  const auto* once = std::get_if<OneShot>(&method.kind);
  return std::holds_alternative<Calibrated>(method.kind) ||
         (once != nullptr && method.run != nullptr && once->score == nullptr && !once->waits &&
          &method != &kNone);
}

bool reads_scores(const Method& method) {
  const auto* once = std::get_if<OneShot>(&method.kind);
  return std::holds_alternative<Learning>(method.kind) ||
         (once != nullptr && once->score != nullptr);
}

bool reads_key(const io::PruningConfig& config, std::string_view key) {
  const Method& method = method_of(config);
  const bool in_runs = config.prunes() && !std::holds_alternative<Calibrated>(method.kind);
  const bool file = method.run == nullptr && in_runs;
  const bool chosen = config.prunes() && !file && method.sparsity == nullptr;
  const sparse::IndexShape shape =
      method.shape == nullptr ? sparse::IndexShape{} : method.shape(config);
  // Masks of moving methods begin at random unless pruning.at_step draws them by `run`.
  const bool random_start = std::holds_alternative<Moving>(method.kind) && config.at_step < 0;
  const std::array<std::pair<std::string_view, bool>, 11> readers{{
      {"method", true},
      {"exclude", true},
      {"sparsity", chosen},
      {"at_step", in_runs},
      {"from_step", chosen && in_runs},
      {"to_step", chosen && in_runs},
      {"scope", config.prunes() && !file && !method.by_layer && !random_start},
      {"n", shape.n > 0},
      {"m", shape.n > 0},
      {"block", shape.height > 0},
      {"file", file},
  }};
  const auto* found = std::ranges::find(readers, key, [](const auto& one) { return one.first; });
  if (found != readers.end()) {
    return found->second;
  }
  return (key == "seed" && method.random) ||
         std::visit([&](const auto& kind) { return reads(kind, config, key); }, method.kind);
}

int64_t interval_of(const io::PruningConfig& config) {
  return config.every > 0 ? config.every : method_of(config).every;
}

std::unique_ptr<Work> start(RunSettings settings, const Weights& weights) {
  if (!settings.config.prunes()) {
    return nullptr;
  }
  return std::visit([&](const auto& kind) { return start(kind, std::move(settings), weights); },
                    method_of(settings.config).kind);
}

}  // namespace espalier::pruning
