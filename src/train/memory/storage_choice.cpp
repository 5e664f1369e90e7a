#include "src/train/memory/storage_choice.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "parallel/transport/collectives.h"
#include "pruning/plan.h"
#include "sparse/weight/weight.h"
#include "src/core/mirror.h"
#include "src/core/rng.h"
#include "src/core/trace.h"
#include "src/kernels/backend.h"
#include "src/model/layers/convolution.h"

namespace espalier::train {
namespace {

using sparse::Storage;

// Other work on the machine only adds to a time, and for longer than one product. So all storages
// are timed in several rounds, one after the other, and the least time of each counts.
constexpr int kRounds = 4;
constexpr int kFewRounds = 2;
constexpr double kLongRounds = 1;  // seconds, after which kFewRounds suffice
constexpr int kTimings = 2;        // a round, after a run that is not timed
// Each storage first runs once. On a CPU storages with a much longer first run are left at that:
// above kShortRun seconds it contains little but the products. (On a device libraries load in it.)
constexpr double kShortRun = 0.05;
constexpr double kTooSlow = 2;    // times the shortest first run
constexpr double kLongRun = 0.5;  // seconds, from which a round has one timing

// Times of one storage differ by about this share between trials.
constexpr double kSameTime = 0.05;

bool is_auto(const io::Config& config, const std::string& name) {
  return config.sparse.storage.for_name(name) == "auto";
}

/// Fills a tensor with deterministic values of typical size, which repeat.
void fill(Stream& stream, const Tensor& all, uint64_t key) {
  constexpr int64_t kPeriod = 65'537;
  const Mirror mirror(stream, all);
  const Tensor& tensor = mirror.host();
  with_number(tensor.dtype, [&]<class Number>(Number) {
    auto* const values = tensor.get<Number>();
    for (int64_t i = 0; i < tensor.count(); ++i) {
      if (i < kPeriod) {
        const Philox bits = philox(key, 0, static_cast<uint64_t>(i));
        values[i] = from_float<Number>(normal_pair(bits[0], bits[1])[0]);
      } else {
        values[i] = values[i - kPeriod];
      }
    }
  });
  mirror.write();
}

/// Whether all masks of this parameter during the run consist of blocks.
bool may_be_blocks(const StorageChoiceInput& input, const sparse::Parameter& parameter) {
  const io::PruningConfig& pruning = input.config.pruning;
  const bool blocks = pruning::shape_of(pruning).height > 0;
  if (parameter.full()) {
    return blocks;
  }
  return (blocks || !pruning.prunes()) &&
         (parameter.index.dry() ||  // without a mask
          sparse::find_blocks(parameter.index.mask(), parameter.spec.shape,
                              input.store.options().block));
}

/// Weights that keep the size of what a trial multiplies: its products read each other's results,
/// and subnormal numbers would slow some processors down, so that sparse products looked slow.
/// W Wᵀ multiplies by 1/2 on average, at most by 2 to 2.5 in the end. A convolution's transpose
/// sums over the windows of a pixel.
float deviation_of(const StorageGroup& group) {
  auto products = static_cast<double>(group.shape.count());
  if (group.window) {
    const auto windows = static_cast<double>(group.window->area()) /
                         static_cast<double>(group.window->stride * group.window->stride);
    products *= std::max(windows, 1.0);
  }
  const double kept = group.density * std::sqrt(products);
  return static_cast<float>(1 / std::sqrt(2 * std::max(kept, 1.0)));
}

/// The layer of a group that is a convolution.
model::Convolution::Options convolution_of(const StorageGroup& group) {
  return {.window = *group.window,
          .in = group.shape.cols() / group.window->area() * group.groups,
          .out = group.shape.rows() * group.groups,
          .groups = group.groups,
          .linear = {.deviation = deviation_of(group), .bias = false}};
}

/// One parameter, or all of a convolution.
std::vector<sparse::ParameterSpec> trial_specs(const StorageGroup& group) {
  if (group.window) {
    return model::Convolution("trial", convolution_of(group)).parameters();
  }
  return {{.name = "weight",
           .shape = group.shape,
           .initial = sparse::Initial::normal,
           .deviation = deviation_of(group),
           .prunable = true}};
}

/// The mask of the group's first parameter if it is pruned; else an example of the method's
/// structure with the group's density.
sparse::Mask mask_of(const StorageChoiceInput& input, const StorageGroup& group) {
  const sparse::Parameter& real = input.store.parameters()[group.parameters.front()];
  if (!real.full()) {
    return real.index.mask();
  }
  const auto size = static_cast<double>(group.shape.count());
  return pruning::example_mask(input.config.pruning, trial_specs(group).front(),
                               std::llround(group.density * size));
}

/// Whether the storage holds the group's masks, and is of use. The same on all ranks: it depends on
/// masks and the kind of memory only.
bool is_candidate(const Storage& storage, const StorageChoiceInput& input,
                  const StorageGroup& group) {
  if (storage.keeps_forms) {
    return !input.store.arena().on_device();
  }
  return !storage.whole_blocks ||
         (group.blocks &&
          sparse::find_blocks(mask_of(input, group), group.shape, input.store.options().block)
              .has_value());
}

enum class Product : uint8_t { forward, input_gradient, weight_gradient };
constexpr std::array kProducts{Product::forward, Product::input_gradient, Product::weight_gradient};

/// One parameter of a group, or one convolution, in its own store; without memory on dry kernels.
class Trial {
 public:
  /// `tape_bytes`: of the tape of a convolution.
  Trial(const StorageChoiceInput& input, const StorageGroup& group, int threads,
        const kernels::Kernels& kernels, size_t tape_bytes, bool dry = false)
      : group_(group),
        kernels_(kernels),
        arena_(dry ? Arena(true) : input.store.arena().another()),
        stream_(arena_, threads, arena_.dry() ? nullptr : input.store.stream().queue()),
        store_(stream_, kernels, trial_specs(group), options_of(input, group, arena_.dry())),
        tape_(arena_, tape_bytes, arena_.dry()) {
    stream_.set_deterministic(input.config.run.deterministic);
    if (arena_.dry()) {
      arena_.note_heap(store_.mask_bytes());
      store_.plan_copies();
    } else {
      store_.initialise(1);
    }
    auto activations = [&](std::string_view name, int64_t rows, int64_t width, uint64_t key) {
      Buffer buffer =
          arena_.allocate(Memory::activation, name, store_.options().dtype, Shape{rows, width});
      if (!arena_.dry()) {
        fill(stream_, buffer.tensor(), key);
      }
      return buffer;
    };
    if (group.window) {
      convolution_.emplace("trial", convolution_of(group));
      convolution_->bind(store_, kernels);
      x_ = activations("trial input", group.rows * group.window->pixels(), convolution_->in(), 1);
      y_ = activations("trial output", group.rows * group.window->out_pixels(), convolution_->out(),
                       2);
    } else {
      weight_.emplace(store_, kernels, store_.parameters().front());
      x_ = activations("trial input", group.rows, group.shape.cols(), 1);
      y_ = activations("trial output", group.rows, group.shape.rows(), 2);
    }
  }

  /// Of the model state of one parameter, with the storage that is set.
  size_t bytes() const { return arena_.model_state_bytes() / static_cast<size_t>(group_.groups); }

  /// The rows of later runs, at most those of the group.
  void set_rows(int64_t rows) { rows_ = rows; }

  void run(Product product) {
    const Tensor x = x_.tensor().row_range(0, x_.tensor().rows() / group_.rows * rows_);
    const Tensor y = y_.tensor().row_range(0, y_.tensor().rows() / group_.rows * rows_);
    model::Pass pass{.stream = stream_,
                     .kernels = kernels_,
                     .tape = tape_,
                     .dtype = x.dtype,
                     .samples = rows_,
                     .training = true};
    switch (product) {
      case Product::forward:
        convolution_ ? convolution_->forward(pass, x, y)
                     : weight_->apply(stream_, {.x = x, .y = y});
        return;
      case Product::input_gradient:
        convolution_ ? convolution_->backward_input(pass, y, x)
                     : weight_->apply_transposed(stream_, {.dy = y, .dx = x});
        return;
      case Product::weight_gradient:
        convolution_ ? convolution_->backward_weight(pass, x, y, false)
                     : weight_->accumulate_gradient(stream_, {.dy = y, .x = x});
        return;
    }
  }

  void set_storage(Storage storage) {
    for (sparse::Parameter& parameter : store_.parameters()) {
      store_.set_storage(parameter, storage);
    }
  }
  /// All products in all storages that the group may have.
  void run_all() {
    for (const Storage* storage : sparse::storages()) {
      if (!storage->whole_blocks || group_.blocks) {
        set_storage(*storage);
        run();
      }
    }
  }
  size_t scratch() const { return arena_.use(Memory::scratch).peak; }
  size_t tape_bytes() const { return tape_.high_water(); }
  /// Of all memory of a trial, after `run_all` on dry kernels.
  size_t planned_bytes() const { return arena_.peak_with_heap() + tape_bytes(); }

  /// The least seconds of `timings` runs, after one that is not timed if `warms_up`. Empty if
  /// memory is short.
  std::optional<double> time(const Storage& storage, int timings, bool warms_up) {
    double begin = 0;
    try {
      set_storage(storage);
      begin = now_seconds();
      run();
    } catch (const Failure&) {
      return {};
    }
    stream_.synchronize();
    double least = warms_up ? std::numeric_limits<double>::infinity() : now_seconds() - begin;
    for (int timing = warms_up ? 0 : 1; timing < timings; ++timing) {
      begin = now_seconds();
      run();
      stream_.synchronize();
      least = std::min(least, now_seconds() - begin);
    }
    return least / static_cast<double>(group_.groups);
  }

 private:
  void run() {
    for (const Product product : kProducts) {
      run(product);
    }
  }

  static sparse::StoreOptions options_of(const StorageChoiceInput& input, const StorageGroup& group,
                                         bool dry) {
    sparse::StoreOptions options = input.store.options();
    const std::string name = input.store.parameters()[group.parameters.front()].spec.name;
    if (auto encoding = options.encoding) {
      options.encoding = [encoding, name](const std::string&) { return encoding(name); };
    }
    options.storage = {};
    options.sharding = {};
    if (dry) {
      const auto size = static_cast<double>(group.shape.count());
      options.planned.assign(static_cast<size_t>(group.groups), std::llround(group.density * size));
    } else {
      options.start = [&](size_t) { return mask_of(input, group); };
    }
    return options;
  }

  const StorageGroup& group_;
  const kernels::Kernels& kernels_;
  Arena arena_;
  Stream stream_;
  sparse::Store store_;
  model::Tape tape_;
  std::optional<sparse::Weight> weight_;           ///< of a product
  std::optional<model::Convolution> convolution_;  ///< else
  Buffer x_, y_;
  int64_t rows_ = group_.rows;
};

/// Bytes of a trial's tape, of dry kernels, for all storages.
size_t tape_bytes_of(const StorageChoiceInput& input, const StorageGroup& group, int threads,
                     const kernels::Kernels& dry) {
  if (!group.window) {
    return 0;
  }
  Trial trial(input, group, threads, dry, 0, true);
  trial.run_all();
  return trial.tape_bytes();
}

/// StorageTiming::scratch, of dry kernels.
size_t scratch_beyond_sparse(const StorageChoiceInput& input, const StorageGroup& group,
                             int threads, const kernels::Kernels& dry, Storage storage) {
  const auto scratch = [&](Product product, Storage of) {
    Trial trial(input, group, threads, dry, 0, true);
    trial.set_storage(of);
    trial.run(product);
    return trial.scratch();
  };
  size_t most = 0;
  for (const Product product : kProducts) {
    const size_t planned = scratch(product, Storage::sparse);
    most = std::max(most, std::max(scratch(product, storage), planned) - planned);
  }
  return most;
}

bool is_too_slow(double first, double shortest, bool on_device) {
  return !on_device && first > kShortRun && first > kTooSlow * shortest;
}

/// Of the first runs on a CPU: a few where all would take seconds in a slow storage.
int64_t rows_of_first_runs(const StorageGroup& group, bool on_device) {
  constexpr int64_t kMuch = int64_t{1} << 31U;  // multiplications
  constexpr int64_t kFew = 64;
  const bool much = group.shape.count() > kMuch / group.rows;
  return much && !on_device && !group.window
             ? std::clamp<int64_t>(group.rows / 8, std::min(kFew, group.rows), group.rows)
             : group.rows;
}

/// `group.timings` are of first runs, of all rows if `whole`.
void time_in_rounds(Trial& trial, bool on_device, bool whole, StorageGroup& group) {
  std::vector<double> first;  // seconds of the whole trial
  for (const StorageTiming& timing : group.timings) {
    first.push_back(timing.seconds * static_cast<double>(group.groups));
  }
  const double shortest = first.empty() ? 0 : std::ranges::min(first);
  const double begin = now_seconds();
  for (int round = 0;
       round < kFewRounds || (round < kRounds && now_seconds() - begin < kLongRounds); ++round) {
    for (size_t t = 0; t < first.size(); ++t) {
      StorageTiming& timing = group.timings[t];
      const bool is_long = first[t] > kLongRun && !on_device;
      // The first run was the first round of long ones.
      if ((is_long && whole && round == 0) || is_too_slow(first[t], shortest, on_device)) {
        continue;
      }
      // Forms are made in the first run.
      const auto seconds = trial.time(timing.storage, is_long ? 1 : kTimings,
                                      !is_long || timing.storage.keeps_forms);
      if (seconds) {
        const bool first_of_all_rows = !whole && timing.slowest_round == 0;
        timing.seconds = first_of_all_rows ? *seconds : std::min(timing.seconds, *seconds);
        timing.slowest_round = std::max(timing.slowest_round, *seconds);
      }
    }
  }
}

/// Of each group, a number of its timings.
using Chosen = std::vector<size_t>;

/// State of all parameters plus the largest scratch.
size_t bytes_with(const std::vector<StorageGroup>& groups, const Chosen& chosen) {
  size_t sum = 0;
  size_t scratch = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    const StorageTiming& timing = groups[g].timings[chosen[g]];
    sum += timing.bytes * groups[g].parameters.size();
    scratch = std::max(scratch, timing.scratch);
  }
  return sum + scratch;
}

double seconds_with(const std::vector<StorageGroup>& groups, const Chosen& chosen) {
  double sum = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    sum += groups[g].timings[chosen[g]].seconds * static_cast<double>(groups[g].parameters.size());
  }
  return sum;
}

/// Of each group, among the timings with at most this scratch: of those within kSameTime of the
/// fastest the one with the fewest bytes. Empty: a group has none.
Chosen best_within(const std::vector<StorageGroup>& groups, size_t scratch) {
  Chosen chosen;
  for (const StorageGroup& group : groups) {
    double fastest = std::numeric_limits<double>::infinity();
    for (const StorageTiming& timing : group.timings) {
      fastest = timing.scratch <= scratch ? std::min(fastest, timing.seconds) : fastest;
    }
    const auto rank = [&](size_t t) {
      return std::pair(group.timings[t].bytes, group.timings[t].seconds);
    };
    std::optional<size_t> best;
    for (size_t t = 0; t < group.timings.size(); ++t) {
      const StorageTiming& timing = group.timings[t];
      if (timing.scratch <= scratch && timing.seconds <= (1 + kSameTime) * fastest &&
          (!best || rank(t) < rank(*best))) {
        best = t;
      }
    }
    if (!best) {
      return {};
    }
    chosen.push_back(*best);
  }
  return chosen;
}

/// The next move to a storage with a smaller state: {group, timing} with the least added time per
/// saved byte.
std::optional<std::pair<size_t, size_t>> cheapest_saving(const std::vector<StorageGroup>& groups,
                                                         const Chosen& chosen, size_t scratch) {
  std::optional<std::pair<size_t, size_t>> best;
  double best_price = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    const StorageTiming& now = groups[g].timings[chosen[g]];
    for (size_t t = 0; t < groups[g].timings.size(); ++t) {
      const StorageTiming& other = groups[g].timings[t];
      if (other.bytes >= now.bytes || other.scratch > scratch) {
        continue;
      }
      const double price =
          (other.seconds - now.seconds) / static_cast<double>(now.bytes - other.bytes);
      if (!best || price < best_price) {
        best = {g, t};
        best_price = price;
      }
    }
  }
  return best;
}

/// Moves groups to smaller storages until all fit, with at most this scratch; empty: they do not.
Chosen fit_within(const std::vector<StorageGroup>& groups, size_t scratch, size_t budget) {
  Chosen chosen = best_within(groups, scratch);
  while (!chosen.empty() && bytes_with(groups, chosen) > budget) {
    const auto saving = cheapest_saving(groups, chosen, scratch);
    if (!saving) {
      return {};
    }
    chosen[saving->first] = saving->second;
  }
  return chosen;
}

/// The least bytes that any choice takes.
size_t least_bytes(const std::vector<StorageGroup>& groups, const std::set<size_t>& scratches) {
  size_t least = SIZE_MAX;
  for (const size_t scratch : scratches) {
    Chosen chosen = best_within(groups, scratch);
    while (const auto saving =
               chosen.empty() ? std::nullopt : cheapest_saving(groups, chosen, scratch)) {
      chosen[saving->first] = saving->second;
    }
    least = chosen.empty() ? least : std::min(least, bytes_with(groups, chosen));
  }
  return least;
}

/// Time of a storage relative to dense; 0 if one of them was not timed.
double times_dense(const StorageGroup& group, Storage storage) {
  const auto of = [&](Storage which) {
    const auto found = std::ranges::find(group.timings, which, &StorageTiming::storage);
    return found == group.timings.end() ? 0 : found->seconds;
  };
  const double dense = of(Storage::dense);
  return dense > 0 ? of(storage) / dense : 0;
}

}  // namespace

bool has_auto_storage(const io::Config& config, const sparse::Store& store) {
  return std::ranges::any_of(store.parameters(), [&](const sparse::Parameter& parameter) {
    return is_auto(config, parameter.spec.name);
  });
}

namespace {

/// Groups without timings: parameters of one shape, density and kind of masks.
std::vector<StorageGroup> auto_groups(const StorageChoiceInput& input) {
  // shape; rows, window and groups; density; blocks
  using Key = std::tuple<int64_t, int64_t, std::array<int64_t, 7>, int, bool>;
  std::map<Key, StorageGroup> found;
  const auto parameters = input.store.parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    const sparse::Parameter& parameter = parameters[p];
    const double density = parameter.full() ? input.density : parameter.index.density();
    if (!input.prunable[p] || density >= 1 || !is_auto(input.config, parameter.spec.name)) {
      continue;
    }
    const Shape& shape = parameter.spec.shape;
    // Densities within a tenth of each other share a group.
    const int bin = static_cast<int>(std::lround(std::log(std::max(density, 1e-6)) * 10));
    const bool blocks = may_be_blocks(input, parameter);
    const sparse::ParameterSpec& spec = parameter.spec;
    const kernels::Window window = spec.window.value_or(kernels::Window());
    const int64_t groups = spec.window ? spec.groups : 1;
    const int64_t rows = spec.window     ? input.samples
                         : spec.rows > 0 ? input.samples * spec.rows
                                         : input.rows;
    const std::array<int64_t, 7> use{rows,          window.height,  window.width, window.extent,
                                     window.stride, window.padding, groups};
    StorageGroup& group = found[{shape.rows(), shape.cols(), use, bin, blocks}];
    group.shape = shape;
    group.rows = rows;
    group.window = spec.window;
    group.groups = groups;
    group.density = density;
    group.blocks = blocks;
    group.parameters.push_back(p);
  }
  std::vector<StorageGroup> groups;
  for (auto& [key, group] : found) {
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace

size_t plan_timings(const StorageChoiceInput& input, int threads, const kernels::Kernels& kernels) {
  size_t most = 0;
  for (const StorageGroup& group : auto_groups(input)) {
    Trial trial(input, group, threads, kernels, 0, true);
    trial.run_all();
    trial.run_all();  // rounds after the first begin with the workspace of all storages
    most = std::max(most, trial.planned_bytes());
  }
  return most;
}

std::vector<StorageGroup> time_storages(const StorageChoiceInput& input, int threads,
                                        const kernels::Kernels& kernels) {
  std::vector<StorageGroup> groups = auto_groups(input);
  for (StorageGroup& group : groups) {
    const kernels::Kernels& dry = *kernels::planning(kernels).kernels;
    Trial trial(input, group, threads, kernels, tape_bytes_of(input, group, threads, dry));
    const bool on_device = input.store.arena().on_device();
    const int64_t rows = rows_of_first_runs(group, on_device);
    trial.set_rows(rows);
    for (const Storage* storage : sparse::storages()) {
      if (!is_candidate(*storage, input, group)) {
        continue;
      }
      if (const auto first = trial.time(*storage, 1, false)) {
        group.timings.push_back(
            {.storage = *storage,
             .seconds = *first * static_cast<double>(group.rows) / static_cast<double>(rows),
             .bytes = trial.bytes(),
             .scratch = scratch_beyond_sparse(input, group, threads, dry, *storage)});
      }
    }
    trial.set_rows(group.rows);
    time_in_rounds(trial, on_device, rows == group.rows, group);
  }
  return groups;
}

void keep_common_timings(std::vector<StorageGroup>& groups, parallel::Communicator& comm) {
  const auto storages = sparse::storages();
  std::vector<double> missing(groups.size() * storages.size(), 1);
  const auto place = [&](size_t group, const StorageTiming& timing) {
    const auto found = std::ranges::find_if(
        storages, [&](const Storage* storage) { return *storage == timing.storage; });
    return group * storages.size() + static_cast<size_t>(found - storages.begin());
  };
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const StorageTiming& timing : groups[g].timings) {
      missing[place(g, timing)] = 0;
    }
  }
  parallel::all_reduce_small(comm, missing, parallel::Combine::max);
  for (size_t g = 0; g < groups.size(); ++g) {
    std::erase_if(groups[g].timings,
                  [&](const StorageTiming& timing) { return missing[place(g, timing)] > 0; });
  }
}

namespace {

Chosen planned_storages(const std::vector<StorageGroup>& groups) {
  Chosen planned;
  for (const StorageGroup& group : groups) {
    const auto found = std::ranges::find(group.timings, Storage::sparse, &StorageTiming::storage);
    require(found != group.timings.end(), "storage sparse holds every mask");
    planned.push_back(static_cast<size_t>(found - group.timings.begin()));
  }
  return planned;
}

size_t chosen_bytes(const std::vector<StorageGroup>& groups) {
  Chosen chosen;
  std::ranges::transform(groups, std::back_inserter(chosen), &StorageGroup::chosen);
  return bytes_with(groups, chosen);
}

void set_chosen(std::vector<StorageGroup>& groups, const Chosen& chosen) {
  const Chosen best = best_within(groups, SIZE_MAX);
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::vector<StorageTiming>& timings = groups[g].timings;
    groups[g].chosen = chosen[g];
    groups[g].limited = timings[chosen[g]].seconds > timings[best[g]].seconds;
  }
}

}  // namespace

size_t planned_bytes(const std::vector<StorageGroup>& groups) {
  return bytes_with(groups, planned_storages(groups));
}

/// Groups share one scratch, the largest of all. If their best storages do not fit: for each size
/// that it may have, groups begin with the best within it and move; the fastest result is chosen.
void choose_storages(std::vector<StorageGroup>& groups, std::optional<size_t> budget) {
  std::set<size_t> scratches{0};
  for (const StorageGroup& group : groups) {
    for (const StorageTiming& timing : group.timings) {
      scratches.insert(timing.scratch);
    }
  }
  Chosen best = best_within(groups, SIZE_MAX);
  if (!best.empty() && bytes_with(groups, best) > budget.value_or(SIZE_MAX)) {
    best.clear();
    for (const size_t scratch : scratches) {
      Chosen chosen = fit_within(groups, scratch, *budget);
      if (!chosen.empty() &&
          (best.empty() || seconds_with(groups, chosen) < seconds_with(groups, best))) {
        best = std::move(chosen);
      }
    }
  }
  check(groups.empty() || !best.empty(),
        "no storage fits train.memory_budget: the pruned weights need {} bytes, {} are left for "
        "them; raise the budget or pruning.sparsity",
        least_bytes(groups, scratches), budget.value_or(SIZE_MAX));
  set_chosen(groups, best);
}

void share_choice(std::vector<StorageGroup>& groups, parallel::Communicator& comm) {
  std::vector<uint64_t> chosen;
  for (const StorageGroup& group : groups) {
    chosen.push_back(group.chosen);
  }
  parallel::broadcast(comm, 0, std::as_writable_bytes(std::span(chosen)));
  for (size_t g = 0; g < groups.size(); ++g) {
    groups[g].chosen = chosen[g];
  }
}

void choose_storages_that_fit(std::vector<StorageGroup>& groups, size_t budget, size_t limit,
                              const std::function<size_t()>& needed, parallel::Communicator& comm) {
  const size_t planned = planned_bytes(groups);
  std::array<double, 1> least{-static_cast<double>(budget)};  // ranks must take the same decisions
  parallel::all_reduce_small(comm, least, parallel::Combine::max);
  budget = static_cast<size_t>(-least[0]);
  while (true) {
    choose_storages(groups, budget);
    share_choice(groups, comm);
    const size_t bytes = needed();
    std::array<double, 1> excess{static_cast<double>(std::max(bytes, limit) - limit)};
    parallel::all_reduce_small(comm, excess, parallel::Combine::max);
    if (excess[0] == 0) {
      return;
    }
    if (budget == planned) {
      set_chosen(groups, planned_storages(groups));
      return;
    }
    // At least one group must move.
    const size_t less = std::min(budget, chosen_bytes(groups) - 1);
    budget = std::max(less - std::min(less, static_cast<size_t>(excess[0]) - 1), planned);
  }
}

std::map<std::string, std::string> storages_chosen(const std::vector<StorageGroup>& groups,
                                                   const sparse::Store& store) {
  std::map<std::string, std::string> chosen;
  for (const StorageGroup& group : groups) {
    for (const size_t p : group.parameters) {
      chosen[store.parameters()[p].spec.name] = group.timings[group.chosen].storage.name;
    }
  }
  return chosen;
}

void set_storages(const std::map<std::string, std::string>& chosen, sparse::Store& store) {
  for (sparse::Parameter& parameter : store.parameters()) {
    if (const auto found = chosen.find(parameter.spec.name); found != chosen.end()) {
      store.set_storage(parameter, sparse::storage_by_name(found->second));
    }
  }
}

namespace {

/// "[64, 576]"; of a convolution "[64, 576] 3x3 of 28x28".
std::string use_text(const StorageGroup& group) {
  const std::string shape = group.shape.text();
  if (!group.window) {
    return shape;
  }
  const kernels::Window& window = *group.window;
  return fmt::format("{} {}x{} of {}x{}", shape, window.extent, window.extent, window.height,
                     window.width);
}

}  // namespace

std::string storage_table(const std::vector<StorageGroup>& groups) {
  size_t width = 14;
  for (const StorageGroup& group : groups) {
    width = std::max(width, use_text(group).size());
  }
  std::string table = fmt::format("{:<{}} {:>8} {:>7}", "shape", width, "density", "weights");
  for (const Storage* storage : sparse::storages()) {
    table += fmt::format("  {:>17}", fmt::format("{} ms, B/p", storage->name));
  }
  table += "  chosen\n";
  for (const StorageGroup& group : groups) {
    table += fmt::format("{:<{}} {:>8.4f} {:>7}", use_text(group), width, group.density,
                         group.parameters.size());
    for (const Storage* storage : sparse::storages()) {
      const auto timing = std::ranges::find(group.timings, *storage, &StorageTiming::storage);
      table += timing == group.timings.end()
                   ? fmt::format("  {:>17}", "-")
                   : fmt::format("  {:>9.3f}, {:>6.3f}", timing->seconds * 1e3,
                                 static_cast<double>(timing->bytes) /
                                     static_cast<double>(group.shape.count()));
    }
    table += fmt::format("  {}{}\n", group.timings[group.chosen].storage.name,
                         group.limited ? " (the fastest does not fit train.memory_budget)" : "");
  }
  double spread = 0;
  for (const StorageGroup& group : groups) {
    for (const StorageTiming& timing : group.timings) {
      spread = std::max(spread, timing.slowest_round / timing.seconds - 1);
    }
  }
  table += fmt::format(
      "each time: the least of several rounds, the slowest of which took up to {:.0f} "
      "% longer\n",
      100 * spread);
  for (const StorageGroup& group : groups) {
    if (const double ratio = times_dense(group, Storage::sparse); ratio > 1) {
      table += fmt::format(
          "{}: products of single elements lose, sparse takes {:.1f} times as long as dense{}\n",
          use_text(group), ratio,
          group.blocks ? "" : "; masks of blocks (pruning.method = \"block\") may win");
    }
  }
  return table;
}

}  // namespace espalier::train
