#pragma once
// When a config key has an effect. Each row of the schema names its Effect; a run names the keys
// that are set and have none.
#include <cstdint>
#include <string_view>

#include "io/config/config.h"

namespace espalier::config {

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

namespace effects {

extern const Effect kAlways;
// Of [model] and [data]:
extern const Effect kTransformer, kMlpRatio, kNorm, kMlp, kVision, kImages, kTokens, kDecoder,
    kBiases, kPositions, kSplit;
// Of [train] and [optimizer]:
extern const Effect kHalf, kSaves, kTeacher, kReplicasOfVision, kMinLr, kBetas, kAdam, kSgd, kGpu;
// Of [pruning] and [sparse]:
extern const Effect kMethod, kPruned, kStorage, kBlockStorage;
// Of [parallel]:
extern const Effect kReplicas, kStages, kSimulatedStages, kGrid, kValues, kLinks, kCodec;

}  // namespace effects

}  // namespace espalier::config
