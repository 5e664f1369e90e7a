#include "src/optim/registry.h"

namespace espalier::optim {

ESPALIER_REGISTRY(kOptimizers, OptimizerKind, kAdamW, kLion, kSgd);

Registry<OptimizerKind> optimizers() { return kOptimizers; }

const OptimizerKind& optimizer_of(const io::OptimizerConfig& config) {
  return find(optimizers(), "optimizer.kind", config.kind);
}

}  // namespace espalier::optim
