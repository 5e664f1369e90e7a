#pragma once
// When a config key has an effect. Each row of the schema names its Effect; a run names the keys
// that are set and have none.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/config/config.h"

namespace espalier::config {

struct Field;

/// Facts of a run, beside its config, that decide which keys have an effect.
struct RunFacts {
  bool on_device = false;  ///< kernels run on a GPU
  bool pruned = false;     ///< weights are pruned at the start or will be
  int64_t replicas = 1;
  int64_t stages = 1;
};

struct Effect {
  /// Completes "has an effect only": "on a GPU". Empty: always.
  std::string_view where{};
  /// Null: always.
  bool (*applies)(const io::Config& config, const RunFacts& run) = nullptr;
};

/// Whether the key has an effect in this run.
bool has_effect(const Field& field, const io::Config& config, const RunFacts& run);

/// The keys that differ from their defaults and have no effect: "optimizer.offload (only on a
/// GPU)".
std::vector<std::string> keys_without_effect(const io::Config& config, const RunFacts& run);

namespace effects {

extern const Effect kAlways;
// Of [model] and [data]:
extern const Effect kTransformer, kMlpRatio, kNorm, kMlp, kVision, kImages, kTokens, kDecoder,
    kBiases, kPositions, kScaled, kScaledByTurns, kSplit;
// Of [train] and [optimizer]:
extern const Effect kHalf, kSaves, kScales, kTeacher, kReplicasOfVision, kMinLr, kStepSchedule,
    kPolynomial, kBetas, kAdam, kSgd, kGpu;
// Of [pruning] and [sparse]:
extern const Effect kMethod, kPruned, kPrunedOnCpu, kBlockStorage;
// Of [parallel]:
extern const Effect kReplicas, kStages, kSimulatedStages, kInterleaved, kGrid, kAsync, kValues,
    kLinks, kCodec;

}  // namespace effects

}  // namespace espalier::config
