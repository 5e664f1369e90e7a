#include "pruning/registry.h"

#include <algorithm>
#include <array>
#include <utility>

#include "pruning/selection.h"

namespace espalier::pruning {

extern const Method kMagnitude, kRandom, kGroups, kBlocks, kRigl, kSet, kSnip, kGrasp, kMovement,
    kElsa, kSynflow, kWanda, kSparseGpt, kEarlyBird;

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
                "pruning.method = \"file\" cannot prune gradually, because its masks are fixed; "
                "set pruning.at_step instead of from_step and to_step");
        },
};

}  // namespace

Registry<Method> methods() {
  static constexpr std::array kMethods{
      &kNone, &kMagnitude, &kRandom,   &kGroups, &kBlocks,  &kFile,  &kRigl,      &kSet,
      &kSnip, &kGrasp,     &kMovement, &kElsa,   &kSynflow, &kWanda, &kSparseGpt, &kEarlyBird};
  return kMethods;
}

const Method& method_by_name(std::string_view name) {
  return find(methods(), "pruning method", name);
}

void fail_in_runs(std::string_view name) {
  fail(
      "pruning.method = \"{0}\" reads the inputs of trained layers and is not for runs; use "
      "`espalier prune CHECKPOINT -o OUT --method {0} --sparsity S --calibration TEXT`, and train "
      "from OUT with --init",
      name);
}

const Method& method_of(const io::PruningConfig& config) { return method_by_name(config.method); }

bool masks_are_blocks(const io::PruningConfig& config) {
  const Method& method = method_of(config);
  return method.shape != nullptr && method.shape(config).height > 0;
}

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
          .block = static_cast<int>(config.block),
          .rounds = static_cast<int>(config.rounds)};
}

bool reads_key(const io::PruningConfig& config, std::string_view key) {
  const Method& method = method_of(config);
  const GradientLearning* learning = method.learning;
  const sparse::IndexShape shape =
      method.shape == nullptr ? sparse::IndexShape{} : method.shape(config);
  // Masks of moving methods begin at random unless pruning.at_step draws them by `run`.
  const bool chosen = !method.from_file() && config.prunes();
  const bool random_start = method.moving() && config.at_step < 0;
  const std::array<std::pair<std::string_view, bool>, 18> readers{{
      {"method", true},
      {"exclude", true},
      {"sparsity", chosen && method.sparsity == nullptr},
      {"at_step", config.prunes() && !method.reads_inputs()},
      {"from_step", chosen && method.sparsity == nullptr && !method.reads_inputs()},
      {"to_step", chosen && method.sparsity == nullptr && !method.reads_inputs()},
      {"every", config.gradual() || method.moving() || method.waits ||
                    (learning != nullptr && learning->project != nullptr)},
      {"distance", method.waits},
      {"drop_fraction", method.moving()},
      {"distribution", random_start},
      {"scope", chosen && !method.by_layer && !random_start},
      {"score_batches", method.score != nullptr},
      {"rounds", method.needs_paths},
      {"penalty", learning != nullptr && learning->add != nullptr},
      {"n", shape.n > 0},
      {"m", shape.n > 0},
      {"block", shape.height > 0},
      {"file", method.from_file()},
  }};
  const auto* found = std::ranges::find(readers, key, [](const auto& one) { return one.first; });
  require(found != readers.end(), "a key of [pruning]", key);
  return found->second;
}

int64_t interval_of(const io::PruningConfig& config) {
  return config.every > 0 ? config.every : method_of(config).every;
}

}  // namespace espalier::pruning
