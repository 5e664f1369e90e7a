#include "src/train/memory/storage_choice.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "parallel/transport/collectives.h"
#include "pruning/registry.h"
#include "sparse/weight/weight.h"
#include "src/core/mirror.h"
#include "src/core/rng.h"
#include "src/core/trace.h"
#include "src/kernels/backend.h"
#include "src/train/masks/pruner.h"

namespace espalier::train {
namespace {

using sparse::Storage;

constexpr int kTimings = 3;

bool is_auto(const io::Config& config, const std::string& name) {
  return config.sparse.storage.for_name(name) == "auto";
}

/// Fills a tensor with deterministic values of typical size.
void fill(Stream& stream, const Tensor& all, uint64_t key) {
  const Mirror mirror(stream, all);
  const Tensor& tensor = mirror.host();
  for (int64_t i = 0; i < tensor.count(); ++i) {
    const Philox bits = philox(key, 0, static_cast<uint64_t>(i));
    const float value = normal_pair(bits[0], bits[1])[0];
    with_number(tensor.dtype,
                [&]<class Number>(Number) { tensor.get<Number>()[i] = from_float<Number>(value); });
  }
  mirror.write();
}

/// Whether all masks of this parameter during the run consist of blocks.
bool may_be_blocks(const StorageChoiceInput& input, const sparse::Parameter& parameter) {
  const io::PruningConfig& pruning = input.config.pruning;
  const bool blocks = pruning::masks_are_blocks(pruning);
  if (parameter.full()) {
    return blocks;
  }
  return (blocks || !pruning.prunes()) &&
         sparse::find_blocks(parameter.index.mask(), parameter.spec.shape,
                             input.store.options().block)
             .has_value();
}

/// Weights that keep the size of what a trial multiplies: its products read each other's results,
/// and subnormal numbers would slow some processors down, so that sparse products looked slow. W Wᵀ
/// multiplies by 1/2 on average, at most by 2 to 2.5 in the end.
sparse::ParameterSpec spec_of(const StorageGroup& group) {
  const double kept = group.density * std::sqrt(static_cast<double>(group.shape.count()));
  return {.name = "weight",
          .shape = group.shape,
          .initial = sparse::Initial::normal,
          .deviation = static_cast<float>(1 / std::sqrt(2 * std::max(kept, 1.0))),
          .prunable = true};
}

/// The mask of the group's first parameter if it is pruned; else an example of the method's
/// structure with the group's density.
sparse::Mask mask_of(const StorageChoiceInput& input, const StorageGroup& group) {
  const sparse::Parameter& real = input.store.parameters()[group.parameters.front()];
  if (!real.full()) {
    return real.index.mask();
  }
  const auto size = static_cast<double>(group.shape.count());
  return example_mask(input.config.pruning, spec_of(group), std::llround(group.density * size));
}

/// Whether the storage holds the group's masks. The same on all ranks: it depends on masks only.
bool holds(const Storage& storage, const StorageChoiceInput& input, const StorageGroup& group) {
  return !storage.whole_blocks ||
         (group.blocks &&
          sparse::find_blocks(mask_of(input, group), group.shape, input.store.options().block)
              .has_value());
}

enum class Product : uint8_t { forward, input_gradient, weight_gradient };
constexpr std::array kProducts{Product::forward, Product::input_gradient, Product::weight_gradient};

/// One parameter of a group in its own store; without memory on dry kernels.
class Trial {
 public:
  Trial(const StorageChoiceInput& input, const StorageGroup& group, int threads,
        const kernels::Kernels& kernels, bool dry = false)
      : arena_(dry ? Arena(true) : input.store.arena().another()),
        stream_(arena_, threads, arena_.dry() ? nullptr : input.store.stream().queue()),
        store_(stream_, kernels, {spec_of(group)}, options_of(input, group, arena_.dry())),
        weight_(store_, kernels, store_.parameters().front()) {
    stream_.set_deterministic(input.config.run.deterministic);
    if (!arena_.dry()) {
      store_.initialise(1);
    }
    const DType dtype = store_.options().dtype;
    auto activations = [&](std::string_view name, int64_t width, uint64_t key) {
      Buffer buffer = arena_.allocate(Memory::activation, name, dtype, Shape{input.rows, width});
      if (!arena_.dry()) {
        fill(stream_, buffer.tensor(), key);
      }
      return buffer;
    };
    x_ = activations("trial input", group.shape.cols(), 1);
    y_ = activations("trial output", group.shape.rows(), 2);
  }

  /// Of model state, with the storage that is set.
  size_t bytes() const { return arena_.model_state_bytes(); }

  void run(Product product) {
    switch (product) {
      case Product::forward:
        weight_.apply(stream_, {.x = x_.tensor(), .y = y_.tensor()});
        return;
      case Product::input_gradient:
        weight_.apply_transposed(stream_, {.dy = y_.tensor(), .dx = x_.tensor()});
        return;
      case Product::weight_gradient:
        weight_.accumulate_gradient(stream_, {.dy = y_.tensor(), .x = x_.tensor()});
        return;
    }
  }

  void set_storage(Storage storage) { store_.set_storage(store_.parameters().front(), storage); }
  size_t scratch() const { return arena_.use(Memory::scratch).peak; }

  /// Empty if memory is short.
  std::optional<StorageTiming> time(Storage storage) {
    try {
      set_storage(storage);
      run();
    } catch (const Failure&) {
      return {};
    }
    stream_.synchronize();
    std::vector<double> seconds;
    for (int round = 0; round < kTimings; ++round) {
      const double begin = now_seconds();
      run();
      stream_.synchronize();
      seconds.push_back(now_seconds() - begin);
    }
    std::ranges::sort(seconds);
    return StorageTiming{.storage = storage, .seconds = seconds[kTimings / 2], .bytes = bytes()};
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
      options.planned = {std::llround(group.density * size)};
    } else {
      options.start = [&](size_t) { return mask_of(input, group); };
    }
    return options;
  }

  Arena arena_;
  Stream stream_;
  sparse::Store store_;
  sparse::Weight weight_;
  Buffer x_, y_;
};

/// StorageTiming::scratch, of dry kernels.
size_t scratch_beyond_sparse(const StorageChoiceInput& input, const StorageGroup& group,
                             int threads, const kernels::Kernels& dry, Storage storage) {
  const auto scratch = [&](Product product, Storage of) {
    Trial trial(input, group, threads, dry, true);
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

/// The fastest timing of each group among those with at most this scratch; empty: a group has none.
Chosen fastest_within(const std::vector<StorageGroup>& groups, size_t scratch) {
  Chosen chosen;
  for (const StorageGroup& group : groups) {
    std::optional<size_t> best;
    for (size_t t = 0; t < group.timings.size(); ++t) {
      const bool faster = !best || group.timings[t].seconds < group.timings[*best].seconds;
      if (group.timings[t].scratch <= scratch && faster) {
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
  Chosen chosen = fastest_within(groups, scratch);
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
    Chosen chosen = fastest_within(groups, scratch);
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
  std::map<std::tuple<int64_t, int64_t, int, bool>, StorageGroup> found;
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
    StorageGroup& group = found[{shape.rows(), shape.cols(), bin, blocks}];
    group.shape = shape;
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

std::vector<StorageGroup> time_storages(const StorageChoiceInput& input, int threads,
                                        const kernels::Kernels& kernels) {
  std::vector<StorageGroup> groups = auto_groups(input);
  for (StorageGroup& group : groups) {
    Trial trial(input, group, threads, kernels);
    for (const Storage* storage : sparse::storages()) {
      if (!holds(*storage, input, group)) {
        continue;
      }
      if (auto timing = trial.time(*storage)) {
        timing->scratch = scratch_beyond_sparse(input, group, threads,
                                                *kernels::planning(kernels).kernels, *storage);
        group.timings.push_back(*timing);
      }
    }
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
  const Chosen fastest = fastest_within(groups, SIZE_MAX);
  for (size_t g = 0; g < groups.size(); ++g) {
    groups[g].chosen = chosen[g];
    groups[g].limited = chosen[g] != fastest[g];
  }
}

}  // namespace

size_t planned_bytes(const std::vector<StorageGroup>& groups) {
  return bytes_with(groups, planned_storages(groups));
}

/// Groups share one scratch, the largest of all. For each size that it may have, groups begin with
/// their fastest storage and move; the fastest result is chosen.
void choose_storages(std::vector<StorageGroup>& groups, std::optional<size_t> budget) {
  std::set<size_t> scratches{0};
  for (const StorageGroup& group : groups) {
    for (const StorageTiming& timing : group.timings) {
      scratches.insert(timing.scratch);
    }
  }
  Chosen best;
  for (const size_t scratch : scratches) {
    Chosen chosen = fit_within(groups, scratch, budget.value_or(SIZE_MAX));
    if (!chosen.empty() &&
        (best.empty() || seconds_with(groups, chosen) < seconds_with(groups, best))) {
      best = std::move(chosen);
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

std::string storage_table(const std::vector<StorageGroup>& groups) {
  std::string table = fmt::format("{:<14} {:>8} {:>7}", "shape", "density", "weights");
  for (const Storage* storage : sparse::storages()) {
    table += fmt::format("  {:>17}", fmt::format("{} ms, B/p", storage->name));
  }
  table += "  chosen\n";
  for (const StorageGroup& group : groups) {
    table += fmt::format("{:<14} {:>8.4f} {:>7}", group.shape.text(), group.density,
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
  for (const StorageGroup& group : groups) {
    if (const double ratio = times_dense(group, Storage::sparse); ratio > 1) {
      table += fmt::format(
          "{}: products of single elements lose, sparse takes {:.1f} times as long as dense{}\n",
          group.shape.text(), ratio,
          group.blocks ? "" : "; masks of blocks (pruning.method = \"block\") may win");
    }
  }
  return table;
}

}  // namespace espalier::train
