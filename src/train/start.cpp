#include "src/train/start.h"

#include <algorithm>
#include <memory>

#include "src/train/pruner.h"

namespace espalier::train {
namespace {

using Specs = std::vector<sparse::ParameterSpec>;

std::vector<int64_t> sizes_of(const Specs& specs) {
  std::vector<int64_t> sizes;
  for (const sparse::ParameterSpec& spec : specs) {
    sizes.push_back(spec.shape.count());
  }
  return sizes;
}

/// Kept elements as a checkpoint's headers tell, without reading masks; parameters that it lacks
/// keep all.
std::vector<int64_t> kept_in(const std::filesystem::path& checkpoint, const Specs& specs) {
  const io::CheckpointReader reader(checkpoint);
  std::vector<int64_t> kept = sizes_of(specs);
  for (size_t p = 0; p < specs.size(); ++p) {
    if (reader.has(specs[p].name)) {
      kept[p] = std::min(kept[p], reader.info(specs[p].name).nnz);
    }
  }
  return kept;
}

Start from_file(const std::filesystem::path& path, const Specs& specs,
                const std::vector<bool>& prunable) {
  Start start{.masks = masks_in(path, specs, prunable), .kept = {}};
  if (io::is_checkpoint(path)) {
    start.kept = kept_in(path, specs);
  } else {
    for (size_t p = 0; p < specs.size(); ++p) {
      start.kept.push_back(start.masks(p).kept());
    }
  }
  return start;
}

/// The method's masks, made parameter by parameter where parameters do not compete.
struct MaskMaker {
  Specs specs;
  std::vector<bool> prunable;
  pruning::Settings settings;
  std::vector<sparse::Mask> all;  ///< of the prunable parameters in global scope

  std::vector<sparse::Mask> make(size_t first, size_t end) const {
    std::vector<sparse::Index> full;  // of all elements: takes no memory
    std::vector<pruning::Candidate> candidates;
    full.reserve(end - first);
    for (size_t p = first; p < end; ++p) {
      if (prunable[p]) {
        full.push_back(sparse::Index::full(specs[p].shape.count()));
        candidates.push_back(
            {.name = specs[p].name, .shape = specs[p].shape, .index = &full.back(), .values = {}});
      }
    }
    return pruning::prune(candidates, settings).masks;
  }

  sparse::Mask operator()(size_t p) {
    if (!prunable[p]) {
      return sparse::Mask(specs[p].shape.count());
    }
    if (settings.scope == pruning::Scope::layer) {
      return std::move(make(p, p + 1).front());
    }
    if (all.empty()) {
      all = make(0, specs.size());
    }
    const auto before =
        std::count(prunable.begin(), prunable.begin() + static_cast<int64_t>(p), true);
    return std::move(all[static_cast<size_t>(before)]);
  }
};

bool makes_masks_first(const io::PruningConfig& pruning) {
  return pruning.method != "none" && pruning.method != "file" && !pruning.gradual() &&
         pruning.at_step < 0 && !pruning::method_by_name(pruning.method).needs_values;
}

}  // namespace

Start start_of(const io::Config& config, const Specs& specs, const StartFiles& files) {
  const std::vector<bool> prunable = prunable_of(specs, config.pruning);
  if (files.resume) {
    return from_file(*files.resume, specs, prunable);
  }
  if (!files.init.empty()) {
    return from_file(files.init, specs, prunable);
  }
  const std::vector<int64_t> sizes = sizes_of(specs);
  if (config.pruning.method == "file" && config.pruning.at_step < 0) {
    return {.masks = masks_in(config.pruning.file, specs, prunable),
            .kept = kept_in(config.pruning.file, specs),
            .pruned = true};
  }
  if (!makes_masks_first(config.pruning)) {
    return {.masks = {}, .kept = sizes};
  }
  pruning::Settings settings =
      settings_of(config.pruning, static_cast<uint64_t>(config.train.seed));
  settings.sparsity = config.pruning.sparsity;
  const auto maker = std::make_shared<MaskMaker>(MaskMaker{specs, prunable, settings, {}});
  return {.masks = [maker](size_t p) { return (*maker)(p); },
          .kept = kept_after(config.pruning, specs, 0, sizes),
          .pruned = true};
}

std::vector<int64_t> pruning_steps(const io::PruningConfig& config) {
  if (config.method == "none") {
    return {};
  }
  const pruning::Timing timing = timing_of(config);
  return config.method == "file" ? std::vector<int64_t>{timing.from_step}
                                 : pruning::prune_steps(timing);
}

std::vector<int64_t> kept_after(const io::PruningConfig& config, const Specs& specs, int64_t step,
                                std::vector<int64_t> now) {
  if (config.method == "none") {
    return now;
  }
  const std::vector<bool> prunable = prunable_of(specs, config);
  const double sparsity = pruning::target_sparsity(timing_of(config), step);
  const std::vector<int64_t> in_file =
      config.method == "file" ? kept_in(config.file, specs) : std::vector<int64_t>();
  for (size_t p = 0; p < now.size(); ++p) {
    if (!in_file.empty()) {
      now[p] = std::min(now[p], in_file[p]);
    } else if (prunable[p]) {
      now[p] = std::min(now[p], pruning::kept_count(specs[p].shape.count(), sparsity));
    }
  }
  return now;
}

}  // namespace espalier::train
