#include "pruning/registry.h"

#include <array>

#include "pruning/selection.h"

namespace espalier::pruning {

ESPALIER_REGISTRY(kMethods, Method, kNone, kMagnitude, kRandom, kGroups, kRandomGroups, kBlocks,
                  kRandomBlocks, kFile, kRigl, kRiglGroups, kRiglBlocks, kSet, kSetGroups,
                  kSetBlocks, kSnip, kGrasp, kMovement, kElsa, kWanda, kSparseGpt, kEarlyBird);

const Method kNone{
    .name = "none",
    .help = "masks stay as they are",
    .run =
        [](std::span<const Candidate> candidates, const Settings&) {
          return Result{.masks = current_masks(candidates), .warnings = {}};
        },
    .needs_values = false,
};

/// Runs read the masks (RunSettings::masks_of_file).
const Method kFile{
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

Registry<Method> methods() { return kMethods; }

const Method& method_by_name(std::string_view name) {
  return find(methods(), "pruning method", name);
}

const Method& method_of(const io::PruningConfig& config) { return method_by_name(config.method); }

double sparsity_of(const io::PruningConfig& config) {
  const Method& method = method_of(config);
  return method.sparsity != nullptr ? method.sparsity(config) : config.sparsity;
}

Scope scope_by_name(std::string_view name) {
  static constexpr std::array<std::string_view, 2> kScopes{"global", "layer"};
  return static_cast<Scope>(number_of(kScopes, "unknown pruning scope", name));
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

int64_t interval_of(const io::PruningConfig& config) {
  return config.every > 0 ? config.every : method_of(config).every;
}

}  // namespace espalier::pruning
