#include "src/train/masks/example_mask.h"

#include "pruning/pruning.h"
#include "src/train/masks/pruner.h"

namespace espalier::train {

sparse::Mask example_mask(const io::PruningConfig& config, const sparse::ParameterSpec& spec,
                          int64_t kept) {
  const int64_t size = spec.shape.count();
  if (kept == 0 || kept == size) {
    return sparse::Mask(size, kept == size);
  }
  pruning::Settings settings = settings_of(config, 1);
  if (settings.method != "nm" && settings.method != "block") {
    settings.method = "random";
  }
  settings.scope = pruning::Scope::global;  // in which a parameter may be left empty
  settings.sparsity =
      settings.method == "nm" ? 0 : 1 - static_cast<double>(kept) / static_cast<double>(size);
  const sparse::Index all = sparse::Index::full(size);
  std::vector<float> values;
  if (pruning::method_by_name(settings.method).needs_values) {
    values = sparse::initial_values(spec, all, 1);
  }
  const std::vector<pruning::Candidate> candidates{{spec.name, spec.shape, &all, values}};
  return std::move(pruning::prune(candidates, settings).masks.front());
}

}  // namespace espalier::train
