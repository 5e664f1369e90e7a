#include "pruning/kinds/kinds.h"

#include "pruning/regrowth.h"

namespace espalier::pruning {

std::unique_ptr<Work> start(RunSettings settings, const Weights& weights) {
  std::unique_ptr<Work> work;
  if (settings.config.prunes()) {
    work = std::visit([&](const auto& kind) { return start(kind, settings, weights); },
                      method_of(settings.config).kind);
  }
  return with_regrowth(std::move(work), settings, weights);
}

}  // namespace espalier::pruning
