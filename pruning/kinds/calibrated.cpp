// Methods for trained weights at rest. They have no work in a run.
#include "pruning/kinds/kinds.h"
#include "src/core/error.h"

namespace espalier::pruning {

std::unique_ptr<Work> start(const Calibrated& /*kind*/, RunSettings /*settings*/,
                            const Weights& /*weights*/) {
  return nullptr;
}

void validate(const Calibrated& /*kind*/, const io::PruningConfig& config,
              const RunFacts& /*run*/) {
  fail(
      "pruning.method = \"{0}\" reads the inputs of trained layers and is not for runs; use "
      "`espalier prune CHECKPOINT -o OUT --method {0} --sparsity S --calibration TEXT`, and train "
      "from OUT with --init",
      config.method);
}

bool reads(const Calibrated& /*kind*/, const io::PruningConfig& /*config*/, std::string_view key) {
  return key == "calibration";
}

}  // namespace espalier::pruning
