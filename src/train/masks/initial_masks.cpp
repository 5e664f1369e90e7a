#include "src/train/masks/initial_masks.h"

#include <algorithm>
#include <deque>
#include <future>
#include <memory>

#include "pruning/drop_grow.h"
#include "pruning/registry.h"
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
    check_all_layers(io::PlainReader(path), path, specs);
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

/// Kept elements of each parameter in the random start of moving masks.
std::vector<int64_t> kept_at_random_start(const io::PruningConfig& pruning, const Specs& specs) {
  std::vector<int64_t> kept = sizes_of(specs);
  const std::vector<size_t> prunable = numbers_of(prunable_of(specs, pruning));
  std::vector<Shape> shapes;
  for (const size_t p : prunable) {
    shapes.push_back(specs[p].shape);
  }
  const std::vector<int64_t> counts = pruning::start_counts(
      shapes, pruning.sparsity, pruning::distribution_by_name(pruning.distribution));
  for (size_t i = 0; i < prunable.size(); ++i) {
    kept[prunable[i]] = counts[i];
  }
  return kept;
}

/// Whether `now` has the sparsity over all prunable parameters, and not in each, as masks of --init
/// may: pruning then changes nothing (Pruner::masks_that_suffice).
bool has_sparsity(const std::vector<int64_t>& now, const Specs& specs,
                  const std::vector<bool>& prunable, double sparsity) {
  int64_t kept = 0;
  int64_t target = 0;
  int64_t matrices = 0;
  bool sparser = false;
  for (const size_t p : numbers_of(prunable)) {
    const int64_t wanted = pruning::kept_count(specs[p].shape.count(), sparsity);
    kept += now[p];
    target += wanted;
    ++matrices;
    sparser = sparser || now[p] < wanted;
  }
  return sparser && kept <= target + matrices;
}

bool only_layers_compete(const io::PruningConfig& pruning) {
  return pruning::method_of(pruning).by_layer ||
         pruning::scope_of(pruning) == pruning::Scope::layer;
}

/// Makes the method's masks; parameter by parameter if parameters do not compete.
class MaskMaker {
 public:
  MaskMaker(const io::Config& config, Specs specs, int threads)
      : threads_(static_cast<size_t>(threads)),
        specs_(std::move(specs)),
        pruning_(config.pruning),
        method_(pruning::method_of(config.pruning)),
        seed_(static_cast<uint64_t>(config.train.seed)),
        dtype_(dtype_by_name(config.train.dtype)),
        prunable_(prunable_of(specs_, pruning_)) {}

  sparse::Mask operator()(size_t p) {
    if (!prunable_[p]) {
      return sparse::Mask(specs_[p].shape.count());
    }
    if (!method_.moving() && only_layers_compete(pruning_)) {
      return method_.needs_values ? make_one(p) : drawn(p);
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
      if (!method_.moving() && method_.needs_values) {
        values[i] = values_of(spec, full.back());
      }
      candidates.push_back(
          {.name = spec.name, .shape = spec.shape, .index = &full.back(), .values = values[i]});
    }
    pruning::Settings settings = pruning::settings_of(pruning_, seed_);
    settings.sparsity = pruning::target_sparsity(pruning::pruning_schedule_of(pruning_), 0);
    if (method_.moving()) {
      return pruning::random_start(candidates, settings,
                                   pruning::distribution_by_name(pruning_.distribution))
          .masks;
    }
    return pruning::prune(candidates, settings).masks;
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

  size_t threads_;
  Specs specs_;
  io::PruningConfig pruning_;
  const pruning::Method& method_;
  uint64_t seed_;
  DType dtype_;
  std::vector<bool> prunable_;
  std::vector<sparse::Mask> all_;  ///< of the prunable parameters, if they compete
  size_t next_ = 0;                ///< first parameter whose mask is not being drawn
  std::deque<std::pair<size_t, std::future<sparse::Mask>>> ahead_;  ///< by number, ascending
};

bool before_first_step(const io::PruningConfig& pruning) {
  return pruning.prunes() && pruning::pruning_schedule_of(pruning).to_step == 0;
}

bool makes_masks_first(const io::PruningConfig& pruning) {
  const pruning::Method& method = pruning::method_of(pruning);
  return before_first_step(pruning) && !method.from_file() && !method.has_scores() &&
         !method.needs_paths &&
         (method.moving() || only_layers_compete(pruning) || !method.needs_values);
}

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
  if (pruning::method_of(config.pruning).from_file() && before_first_step(config.pruning)) {
    return {.masks = masks_in(config.pruning.file, specs, prunable),
            .kept = kept_in(config.pruning.file, specs),
            .pruned = true,
            .sparse = true};
  }
  if (!makes_masks_first(config.pruning)) {
    return {.masks = {}, .kept = sizes};
  }
  const auto maker = std::make_shared<MaskMaker>(config, specs, threads);
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

std::vector<int64_t> pruning_steps(const io::PruningConfig& config) {
  if (!config.prunes()) {
    return {};
  }
  const pruning::PruningSchedule schedule = pruning::pruning_schedule_of(config);
  return pruning::method_of(config).from_file() ? std::vector<int64_t>{schedule.from_step}
                                                : pruning::prune_steps(schedule);
}

std::vector<int64_t> kept_after(const io::PruningConfig& config, const Specs& specs, int64_t step,
                                std::vector<int64_t> now) {
  if (!config.prunes()) {
    return now;
  }
  const pruning::Method& method = pruning::method_of(config);
  if (method.moving() && step == 0 && !config.gradual() && now == sizes_of(specs)) {
    return kept_at_random_start(config, specs);
  }
  const std::vector<bool> prunable = prunable_of(specs, config);
  const double sparsity = pruning::target_sparsity(pruning::pruning_schedule_of(config), step);
  if (method.shape == nullptr && !method.from_file() &&
      has_sparsity(now, specs, prunable, sparsity)) {
    return now;
  }
  const std::vector<int64_t> in_file =
      method.from_file() ? kept_in(config.file, specs) : std::vector<int64_t>();
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
