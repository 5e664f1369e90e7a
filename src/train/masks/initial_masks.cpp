#include "src/train/masks/initial_masks.h"

#include <algorithm>
#include <deque>
#include <future>
#include <memory>

#include "pruning/plan.h"
#include "src/kernels/rules/master.h"
#include "src/train/masks/pruner.h"

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

/// Kept elements by the headers of a checkpoint, without reading masks. Parameters missing in the
/// file keep all elements.
std::vector<int64_t> kept_in(const std::filesystem::path& checkpoint, const Specs& specs) {
  const io::CheckpointReader reader(checkpoint);
  std::vector<int64_t> kept = sizes_of(specs);
  for (size_t p = 0; p < specs.size(); ++p) {
    if (reader.has(specs[p].name)) {
      const Shape shape = reader.info(specs[p].name).shape;
      check(shape.count() == kept[p],
            "{} is a checkpoint of another model: \"{}\" has {} elements there and {} here",
            checkpoint.string(), specs[p].name, shape.count(), kept[p]);
      kept[p] = std::min(kept[p], reader.info(specs[p].name).nnz);
    }
  }
  return kept;
}

InitialMasks from_file(const std::filesystem::path& path, const Specs& specs,
                       const std::vector<bool>& prunable) {
  if (!io::is_checkpoint(path)) {
    check_nothing_left(io::PlainReader(path), specs);
  }
  InitialMasks start{.masks = masks_in(path, specs, prunable), .kept = {}};
  if (io::is_checkpoint(path)) {
    start.kept = kept_in(path, specs);
  } else {
    for (size_t p = 0; p < specs.size(); ++p) {
      start.kept.push_back(start.masks(p).kept());
    }
  }
  start.sparse = start.kept != sizes_of(specs);
  return start;
}

std::vector<size_t> numbers_of(const std::vector<bool>& flags) {
  std::vector<size_t> numbers;
  for (size_t p = 0; p < flags.size(); ++p) {
    if (flags[p]) {
      numbers.push_back(p);
    }
  }
  return numbers;
}

/// Makes the method's masks; parameter by parameter if parameters do not compete.
class MaskMaker {
 public:
  MaskMaker(pruning::FirstMasks first, const io::Config& config, Specs specs, int threads)
      : first_(std::move(first)),
        threads_(static_cast<size_t>(threads)),
        specs_(std::move(specs)),
        seed_(static_cast<uint64_t>(config.train.seed)),
        dtype_(dtype_by_name(config.train.dtype)),
        prunable_(prunable_of(specs_, config.pruning)) {}

  sparse::Mask operator()(size_t p) {
    if (!prunable_[p]) {
      return sparse::Mask(specs_[p].shape.count());
    }
    if (first_.alone) {
      return first_.reads_values ? make_one(p) : drawn(p);
    }
    if (all_.empty()) {
      all_ = make(numbers_of(prunable_));
    }
    const auto before =
        std::count(prunable_.begin(), prunable_.begin() + static_cast<int64_t>(p), true);
    return std::move(all_[static_cast<size_t>(before)]);
  }

 private:
  sparse::Mask make_one(size_t p) const { return std::move(make({p}).front()); }

  /// Masks are requested in order; meanwhile other threads draw the next ones.
  sparse::Mask drawn(size_t p) {
    while (!ahead_.empty() && ahead_.front().first < p) {
      ahead_.pop_front();
    }
    if (ahead_.empty() || ahead_.front().first != p) {
      ahead_.clear();
      next_ = p + 1;
      ahead_.emplace_back(p, std::async(std::launch::deferred, [this, p] { return make_one(p); }));
    }
    for (; ahead_.size() < threads_ && next_ < specs_.size(); ++next_) {
      if (prunable_[next_]) {
        ahead_.emplace_back(
            next_, std::async(std::launch::async, [this, n = next_] { return make_one(n); }));
      }
    }
    std::future<sparse::Mask> mask = std::move(ahead_.front().second);
    ahead_.pop_front();
    return mask.get();
  }

  std::vector<sparse::Mask> make(const std::vector<size_t>& numbers) const {
    std::vector<sparse::Index> full;  // full indices take no memory
    std::vector<std::vector<float>> values(numbers.size());
    std::vector<pruning::Candidate> candidates;
    full.reserve(numbers.size());
    for (size_t i = 0; i < numbers.size(); ++i) {
      const sparse::ParameterSpec& spec = specs_[numbers[i]];
      full.push_back(sparse::Index::full(spec.shape.count()));
      if (first_.reads_values) {
        values[i] = values_of(spec, full.back());
      }
      candidates.push_back(
          {.name = spec.name, .shape = spec.shape, .index = &full.back(), .values = values[i]});
    }
    return first_.make(candidates);
  }

  /// Initial values, rounded as kernels read them.
  std::vector<float> values_of(const sparse::ParameterSpec& spec,
                               const sparse::Index& index) const {
    std::vector<float> values = sparse::initial_values(spec, index, seed_);
    with_number(dtype_, [&]<class Number>(Number) {
      if constexpr (sizeof(Number) < sizeof(float)) {
        std::ranges::transform(values, values.begin(), [](float value) {
          return to_float(kernels::split<Number>(value).high);
        });
      }
    });
    return values;
  }

  pruning::FirstMasks first_;
  size_t threads_;
  Specs specs_;
  uint64_t seed_;
  DType dtype_;
  std::vector<bool> prunable_;
  std::vector<sparse::Mask> all_;  ///< of the prunable parameters, if they compete
  size_t next_ = 0;                ///< first parameter whose mask is not being drawn
  std::deque<std::pair<size_t, std::future<sparse::Mask>>> ahead_;  ///< by number, ascending
};

}  // namespace

InitialMasks initial_masks(const io::Config& config, const Specs& specs, const WeightSource& files,
                           int threads) {
  const std::vector<bool> prunable = prunable_of(specs, config.pruning);
  if (files.resume) {
    return from_file(*files.resume, specs, prunable);
  }
  if (!files.init.empty()) {
    return from_file(files.init, specs, prunable);
  }
  const std::vector<int64_t> sizes = sizes_of(specs);
  const auto steps = pruning::pruning_steps(config.pruning);
  if (!config.pruning.file.empty() && steps == std::vector<int64_t>{0}) {
    return {.masks = masks_in(config.pruning.file, specs, prunable),
            .kept = kept_in(config.pruning.file, specs),
            .pruned = true,
            .sparse = true};
  }
  auto first = pruning::first_masks(config.pruning, static_cast<uint64_t>(config.train.seed));
  if (!first) {
    return {.masks = {}, .kept = sizes};
  }
  const auto maker = std::make_shared<MaskMaker>(std::move(*first), config, specs, threads);
  return {.masks = [maker](size_t p) { return (*maker)(p); },
          .kept = kept_after(config.pruning, specs, 0, sizes),
          .pruned = true,
          .sparse = true};
}

InitialMasks masks_of_part(const InitialMasks& whole, std::vector<size_t> numbers) {
  InitialMasks part{.masks = {}, .kept = {}, .pruned = whole.pruned, .sparse = whole.sparse};
  for (const size_t number : numbers) {
    part.kept.push_back(whole.kept[number]);
  }
  if (whole.masks) {
    part.masks = [masks = whole.masks, numbers = std::move(numbers)](size_t p) {
      return masks(numbers[p]);
    };
  }
  return part;
}

std::vector<int64_t> kept_after(const io::PruningConfig& config, const Specs& specs, int64_t step,
                                std::vector<int64_t> now) {
  return pruning::kept_after(config, {.specs = specs, .prunable = prunable_of(specs, config)}, step,
                             std::move(now), [&] { return kept_in(config.file, specs); });
}

}  // namespace espalier::train
