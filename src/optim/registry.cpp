#include "src/optim/registry.h"

#include <array>

namespace espalier::optim {

extern const OptimizerKind kAdamW, kLion, kSgd;

Registry<OptimizerKind> optimizers() {
  static constexpr std::array<const OptimizerKind*, 3> kAll{&kAdamW, &kLion, &kSgd};
  return kAll;
}

const OptimizerKind& optimizer_of(const io::OptimizerConfig& config) {
  return find(optimizers(), "optimizer.kind", config.kind);
}

}  // namespace espalier::optim
