#include "pruning/registry.h"

#include <array>

#include "pruning/selection.h"

namespace espalier::pruning {

extern const Method kMagnitude, kRandom, kGroups, kBlocks, kRigl, kSet, kSnip;

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

/// src/train/masks reads the masks.
constexpr Method kFile{
    .name = "file",
    .help = "the masks of pruning.file",
    .needs_values = false,
    .check_config =
        [](const io::PruningConfig& config) {
          check(!config.gradual(),
                "pruning.method = \"file\" takes its masks as they are; use at_step");
        },
};

}  // namespace

Registry<Method> methods() {
  static constexpr std::array kMethods{&kNone, &kMagnitude, &kRandom, &kGroups, &kBlocks,
                                       &kFile, &kRigl,      &kSet,    &kSnip};
  return kMethods;
}

const Method& method_by_name(std::string_view name) {
  return find(methods(), "pruning method", name);
}

const Method& method_of(const io::PruningConfig& config) { return method_by_name(config.method); }

bool makes_blocks(const io::PruningConfig& config) {
  const Method& method = method_of(config);
  return method.shape != nullptr && method.shape(config).height > 0;
}

double sparsity_of(const io::PruningConfig& config) {
  const Method& method = method_of(config);
  return method.sparsity != nullptr ? method.sparsity(config) : config.sparsity;
}

Settings settings_of(const io::PruningConfig& config, uint64_t seed) {
  return {.method = config.method,
          .sparsity = method_of(config).sparsity != nullptr ? 0 : config.sparsity,
          .scope = scope_by_name(config.scope),
          .seed = seed,
          .n = static_cast<int>(config.n),
          .m = static_cast<int>(config.m),
          .block = static_cast<int>(config.block)};
}

int64_t interval_of(const io::PruningConfig& config) {
  return config.every > 0 ? config.every : method_of(config).moving() ? 100 : 10;
}

}  // namespace espalier::pruning
