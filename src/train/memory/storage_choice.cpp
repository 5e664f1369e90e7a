#include "src/train/memory/storage_choice.h"

#include <algorithm>
#include <cmath>
#include <map>

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

constexpr int kRounds = 3;

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
bool may_be_blocks(const StorageQuestion& question, const sparse::Parameter& parameter) {
  const io::PruningConfig& pruning = question.config.pruning;
  const bool blocks = pruning::makes_blocks(pruning);
  if (parameter.full()) {
    return blocks;
  }
  return (blocks || !pruning.prunes()) &&
         sparse::find_blocks(parameter.index.mask(), parameter.spec.shape,
                             question.store.options().block)
             .has_value();
}

sparse::ParameterSpec spec_of(const StorageGroup& group) {
  return {.name = "weight",
          .shape = group.shape,
          .initial = sparse::Initial::normal,
          .deviation = 0.02F,
          .prunable = true};
}

/// The mask of the group's first parameter if it is pruned; else an example of the method's
/// structure with the group's density.
sparse::Mask mask_of(const StorageQuestion& question, const StorageGroup& group) {
  const sparse::Parameter& real = question.store.parameters()[group.parameters.front()];
  if (!real.full()) {
    return real.index.mask();
  }
  const auto size = static_cast<double>(group.shape.count());
  return example_mask(question.config.pruning, spec_of(group), std::llround(group.density * size));
}

/// One parameter of a group in its own store; without memory on dry kernels.
class Trial {
 public:
  Trial(const StorageQuestion& question, const StorageGroup& group, int threads,
        const kernels::Kernels& kernels, bool dry = false)
      : arena_(dry ? Arena(true) : question.store.arena().another()),
        stream_(arena_, threads, arena_.dry() ? nullptr : question.store.stream().queue()),
        store_(stream_, kernels, {spec_of(group)}, options_of(question, group, arena_.dry())),
        weight_(store_, kernels, store_.parameters().front()) {
    stream_.set_deterministic(question.config.run.deterministic);
    if (!arena_.dry()) {
      store_.initialise(1);
    }
    const DType dtype = store_.options().dtype;
    auto activations = [&](std::string_view name, int64_t width, uint64_t key) {
      Buffer buffer = arena_.allocate(Memory::activation, name, dtype, Shape{question.rows, width});
      if (!arena_.dry()) {
        fill(stream_, buffer.tensor(), key);
      }
      return buffer;
    };
    x_ = activations("trial input", group.shape.cols(), 1);
    y_ = activations("trial output", group.shape.rows(), 2);
  }

  size_t scratch(Storage storage) {
    store_.set_storage(store_.parameters().front(), storage);
    run();
    return arena_.use(Memory::scratch).peak;
  }

  /// Empty if the storage cannot hold the mask.
  std::optional<StorageTiming> time(Storage storage) {
    try {
      store_.set_storage(store_.parameters().front(), storage);
    } catch (const Failure&) {
      return {};
    }
    run();
    stream_.synchronize();
    std::vector<double> seconds;
    for (int round = 0; round < kRounds; ++round) {
      const double begin = now_seconds();
      run();
      stream_.synchronize();
      seconds.push_back(now_seconds() - begin);
    }
    std::ranges::sort(seconds);
    return StorageTiming{
        .storage = storage, .seconds = seconds[kRounds / 2], .bytes = arena_.model_state_bytes()};
  }

 private:
  void run() {
    weight_.apply(stream_, {.x = x_.tensor(), .y = y_.tensor()});
    weight_.apply_transposed(stream_, {.dy = y_.tensor(), .dx = x_.tensor()});
    weight_.accumulate_gradient(stream_, {.dy = y_.tensor(), .x = x_.tensor()});
  }

  static sparse::StoreOptions options_of(const StorageQuestion& question, const StorageGroup& group,
                                         bool dry) {
    sparse::StoreOptions options = question.store.options();
    const std::string name = question.store.parameters()[group.parameters.front()].spec.name;
    if (auto encoding = options.encoding) {
      options.encoding = [encoding, name](const std::string&) { return encoding(name); };
    }
    options.storage = {};
    options.sharding = {};
    if (dry) {
      const auto size = static_cast<double>(group.shape.count());
      options.planned = {std::llround(group.density * size)};
    } else {
      options.start = [&](size_t) { return mask_of(question, group); };
    }
    return options;
  }

  Arena arena_;
  Stream stream_;
  sparse::Store store_;
  sparse::Weight weight_;
  Buffer x_, y_;
};

/// State of all parameters plus the largest scratch, if each group has timing choice(group).
template <class Choice>
size_t bytes_with(const std::vector<StorageGroup>& groups, Choice choice) {
  size_t sum = 0;
  size_t scratch = 0;
  for (const StorageGroup& group : groups) {
    const StorageTiming& timing = group.timings[choice(group)];
    sum += timing.bytes * group.parameters.size();
    scratch = std::max(scratch, timing.scratch);
  }
  return sum + scratch;
}

size_t total_bytes(const std::vector<StorageGroup>& groups) {
  return bytes_with(groups, [](const StorageGroup& group) { return group.chosen; });
}

/// Bytes of one parameter with its temporary scratch.
size_t bytes_of(const StorageTiming& timing) { return timing.bytes + timing.scratch; }

/// The next move to a smaller storage: {group, timing} with the least added time per saved byte.
std::optional<std::pair<size_t, size_t>> cheapest_saving(const std::vector<StorageGroup>& groups) {
  std::optional<std::pair<size_t, size_t>> best;
  double best_price = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    const StorageTiming& now = groups[g].timings[groups[g].chosen];
    for (size_t t = 0; t < groups[g].timings.size(); ++t) {
      const StorageTiming& other = groups[g].timings[t];
      if (bytes_of(other) >= bytes_of(now)) {
        continue;
      }
      const double price =
          (other.seconds - now.seconds) / static_cast<double>(bytes_of(now) - bytes_of(other));
      if (!best || price < best_price) {
        best = {g, t};
        best_price = price;
      }
    }
  }
  return best;
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

std::vector<StorageGroup> time_storages(const StorageQuestion& question, int threads,
                                        const kernels::Kernels& kernels) {
  std::map<std::tuple<int64_t, int64_t, int, bool>, StorageGroup> found;
  const auto parameters = question.store.parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    const sparse::Parameter& parameter = parameters[p];
    const double density = parameter.full() ? question.density : parameter.index.density();
    if (!question.prunable[p] || density >= 1 || !is_auto(question.config, parameter.spec.name)) {
      continue;
    }
    const Shape& shape = parameter.spec.shape;
    // Densities within a tenth of each other share a group.
    const int bin = static_cast<int>(std::lround(std::log(std::max(density, 1e-6)) * 10));
    const bool blocks = may_be_blocks(question, parameter);
    StorageGroup& group = found[{shape.rows(), shape.cols(), bin, blocks}];
    group.shape = shape;
    group.density = density;
    group.blocks = blocks;
    group.parameters.push_back(p);
  }
  std::vector<StorageGroup> groups;
  for (auto& [key, group] : found) {
    Trial trial(question, group, threads, kernels);
    for (const Storage* storage : sparse::storages()) {
      if (storage->whole_blocks && !group.blocks) {
        continue;
      }
      if (auto timing = trial.time(*storage)) {
        timing->scratch = Trial(question, group, threads, *kernels::planning(kernels).kernels, true)
                              .scratch(*storage);
        group.timings.push_back(*timing);
      }
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

size_t planned_bytes(const std::vector<StorageGroup>& groups) {
  return bytes_with(groups, [](const StorageGroup& group) {
    const auto found = std::ranges::find(group.timings, Storage::sparse, &StorageTiming::storage);
    require(found != group.timings.end(), "storage sparse holds every mask");
    return static_cast<size_t>(found - group.timings.begin());
  });
}

void choose_storages(std::vector<StorageGroup>& groups, std::optional<size_t> budget) {
  for (StorageGroup& group : groups) {
    const auto fastest = std::ranges::min_element(group.timings, {}, &StorageTiming::seconds);
    group.chosen = static_cast<size_t>(fastest - group.timings.begin());
  }
  while (budget && total_bytes(groups) > *budget) {
    const auto saving = cheapest_saving(groups);
    check(saving.has_value(),
          "no storage fits train.memory_budget: the pruned weights need {} bytes, {} are left for "
          "them; raise the budget or pruning.sparsity",
          total_bytes(groups), *budget);
    groups[saving->first].chosen = saving->second;
    groups[saving->first].limited = true;
  }
}

void apply_storages(std::vector<StorageGroup>& groups, sparse::Store& store,
                    parallel::Communicator& comm) {
  // Every rank has the same list, because whether a storage can hold a mask does not depend on
  // ranks.
  std::vector<uint64_t> chosen;
  for (const StorageGroup& group : groups) {
    chosen.push_back(group.chosen);
  }
  parallel::broadcast(comm, 0, std::as_writable_bytes(std::span(chosen)));
  for (size_t g = 0; g < groups.size(); ++g) {
    groups[g].chosen = chosen[g];
    for (const size_t p : groups[g].parameters) {
      store.set_storage(store.parameters()[p], groups[g].timings[chosen[g]].storage);
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
