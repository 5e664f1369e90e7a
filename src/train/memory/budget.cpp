#include "src/train/memory/budget.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "parallel/pipeline/schedule/registry.h"
#include "src/config/parse.h"
#include "src/train/exchange/shards.h"
#include "src/train/stage/wire_formats.h"

namespace espalier::train {
namespace {

using model::Recompute;

std::string text_of(const PassChoice& choice) {
  return fmt::format("micro_batch = {} and recompute = \"{}\"", choice.micro_batch,
                     name_of(choice.recompute));
}

std::vector<int64_t> divisors_descending(int64_t number) {
  std::vector<int64_t> found;
  for (int64_t divisor = number; divisor >= 1; --divisor) {
    if (number % divisor == 0) {
      found.push_back(divisor);
    }
  }
  return found;
}

std::vector<int64_t> micro_batches(const io::Config& config, int64_t share, bool choose) {
  const int64_t fixed = config.train.micro_batch;
  if (fixed == 0) {
    std::vector<int64_t> sizes = divisors_descending(share);
    if (config.parallel.pipeline > 1 &&
        parallel::schedule_entry(config.parallel.schedule).synchronous) {
      // With few micro-batches, a pipeline that drains after each step is mostly idle.
      const int64_t most = std::max<int64_t>(share / (4 * config.parallel.pipeline), 1);
      std::erase_if(sizes, [most](int64_t size) { return size > most; });
      return sizes;
    }
    return choose ? sizes : std::vector<int64_t>{share};
  }
  check(
      share % fixed == 0,
      "train.micro_batch = {} does not divide a rank's share of {} sequences: use a divisor of {}",
      fixed, share, share);
  return {fixed};
}

std::vector<Recompute> recomputes(const io::Config& config, bool choose) {
  if (config.train.recompute != "auto") {
    return {model::recompute_by_name(config.train.recompute)};
  }
  return choose ? std::vector<Recompute>{Recompute::none, Recompute::selective, Recompute::full}
                : std::vector<Recompute>{Recompute::none};
}

/// Whether the schedule can use micro-batches of this size.
bool schedulable(const io::Config& config, const RunShape& run, int64_t micro_batch) {
  try {
    if (run.stages) {
      run.stages(share_of(config, run.ranks) / micro_batch);
    }
    return true;
  } catch (const Failure&) {
    return false;
  }
}

/// For each rank of a pipeline, the first of `choices` that fits.
std::vector<Recompute> least_by_rank(const io::Config& config, const RunShape& run, const Fit& fit,
                                     const std::vector<Recompute>& choices) {
  std::vector<Recompute> least;
  for (const StageShape& stage : run.stages(share_of(config, run.ranks) / fit.choice.micro_batch)) {
    least.push_back(*std::ranges::find_if(choices, [&](Recompute recompute) {
      const PassChoice choice{.micro_batch = fit.choice.micro_batch, .recompute = recompute};
      return recompute == fit.choice.recompute ||
             plan_stage(config, run, stage, choice).needed() <= fit.budget;
    }));
  }
  return least;
}

/// Whether every rank has room for its copy of a checkpoint. A device's budget is not the host's.
bool has_room_for_copies(const io::Config& config, const RunShape& run, const Fit& fit) {
  const auto has_room = [&](const MemoryPlan& plan) {
    return fit.budget == 0 || run.place.device ||
           plan.needed() + plan.checkpoint_copy <= fit.budget;
  };
  if (!saves_in_background(config) || fit.budget == 0 || !run.stages) {
    return saves_in_background(config) && has_room(fit.plan);
  }
  return std::ranges::all_of(run.stages(share_of(config, run.ranks) / fit.choice.micro_batch),
                             [&](const StageShape& stage) {
                               return has_room(plan_stage(config, run, stage, fit.choice));
                             });
}

/// Share of the free memory above which other processes may cause an out-of-memory error.
constexpr double kNear = 0.8;

struct ChangedRun {
  io::Config config;
  PassChoice choice;
};

struct Way {
  std::string text;
  std::function<void(ChangedRun&)> apply;  ///< empty: the change is not planned
};

/// Changes that save memory, most effective first, except those that are active already.
std::vector<Way> ways_of(const io::Config& config, const RunShape& run, const PassChoice& choice) {
  std::vector<Way> ways;
  auto add = [&ways](bool applies, std::string text, std::function<void(ChangedRun&)> apply = {}) {
    if (applies) {
      ways.push_back({std::move(text), std::move(apply)});
    }
  };
  const bool prunes = config.pruning.prunes();
  const std::string storage(run.place.device ? sparse::Storage::expanded.name
                                             : sparse::Storage::sparse.name);
  const bool grows = !config.pruning.dense_from_step.empty() && (prunes || run.start.sparse);
  add(grows, "leave out pruning.dense_from_step",
      [](ChangedRun& to) { to.config.pruning.dense_from_step.clear(); });
  add(!prunes && !run.start.sparse, "prune from the start (pruning.method = \"random\")");
  add(prunes && !run.start.sparse && !grows,
      "prune from the start, so that dense state never exists (pruning.method = \"random\", "
      "pruning.at_step = -1)");
  const bool copies = config.sparse.storage.fallback == sparse::Storage::dense.name;
  const bool forms =
      config.sparse.storage.fallback == sparse::Storage::tiles.name && !run.place.device;
  add((prunes || run.start.sparse) && (copies || forms),
      fmt::format("sparse.storage = \"{}\" (no {})", storage,
                  copies ? "dense copies" : "kept tiles"),
      [storage](ChangedRun& to) { to.config.sparse.storage.fallback = storage; });
  add(config.train.dtype == "fp32", "train.dtype = \"bf16\"",
      [](ChangedRun& to) { to.config.train.dtype = "bf16"; });
  add(config.optimizer.state_bits == 32, "optimizer.state_bits = 8",
      [](ChangedRun& to) { to.config.optimizer.state_bits = 8; });
  add(config.train.dtype != "fp32" && config.train.master_copy && !encodes_values(config),
      "train.master_copy = false", [](ChangedRun& to) { to.config.train.master_copy = false; });
  add(run.place.device && !config.optimizer.offload, "optimizer.offload = true",
      [](ChangedRun& to) { to.config.optimizer.offload = true; });
  add(run.ranks > 1 && config.parallel.zero == 0 &&
          parallel::schedule_entry(config.parallel.schedule).synchronous,
      "parallel.zero = 1", [](ChangedRun& to) { to.config.parallel.zero = 1; });
  add(!!run.stages,
      fmt::format("more stages than parallel.pipeline = {}", config.parallel.pipeline));
  const bool chooses = !config.train.memory_budget.empty();
  add(choice.recompute != Recompute::full,
      fmt::format("train.recompute = \"{}\"", chooses ? "auto" : "full"),
      [](ChangedRun& to) { to.choice.recompute = Recompute::full; });
  add(choice.micro_batch > 1,
      chooses ? "train.micro_batch = 0 (automatic)" : "train.micro_batch = 1",
      [](ChangedRun& to) { to.choice.micro_batch = 1; });
  return ways;
}

/// Bytes of a rank; 0 if no plan exists.
size_t needed_with(const RunShape& run, const ChangedRun& changed) {
  RunShape shape = run;
  shape.sharding = plan_shards(changed.config, 0, run.ranks);
  try {
    return plan_memory(changed.config, shape, changed.choice).needed();
  } catch (const Failure&) {
    return 0;
  }
}

std::string verdict(size_t needed, size_t bytes) {
  return needed == 0 ? ""
                     : fmt::format(" ({}{})", size_text(needed), needed <= bytes ? ", fits" : "");
}

/// Which stages are above the budget, and by how much; empty: there are no stages.
std::string stages_above(const io::Config& config, const RunShape& run, const Fit& nearest) {
  if (!run.stages) {
    return {};
  }
  const auto stages = run.stages(share_of(config, run.ranks) / nearest.choice.micro_batch);
  std::vector<std::string> above;
  size_t most = 0;
  size_t largest = 0;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const size_t needed = plan_stage(config, run, stages[stage], nearest.choice).needed();
    if (needed > nearest.budget) {
      above.push_back(fmt::format("{}", stage));
    }
    if (needed > most) {
      most = needed;
      largest = stage;
    }
  }
  return above.empty()
             ? ""
             : fmt::format("; of {} stages, {} {} above the budget, stage {} by the most, {}",
                           stages.size(), fmt::join(above, ", "), above.size() == 1 ? "is" : "are",
                           largest, size_text(most - nearest.budget));
}

[[noreturn]] void fail_to_fit(const io::Config& config, const RunShape& run, const Fit& nearest) {
  const PassChoice smallest{.micro_batch = 1, .recompute = Recompute::full};
  std::string least;
  if (smallest != nearest.choice) {
    least = fmt::format("; the least for this model and state is {}, with {}",
                        size_text(plan_memory(config, run, smallest).needed()), text_of(smallest));
  }
  fail(
      "train.memory_budget = \"{}\" is too small: with {} a rank needs {} ({}{}){}{}. {}; or a "
      "budget of at least that",
      config.train.memory_budget, text_of(nearest.choice), size_text(nearest.plan.needed()),
      needs_text(nearest.plan.peak),
      run.place.device ? "" : ", program and temporaries " + size_text(nearest.plan.outside_arena),
      stages_above(config, run, nearest), least,
      ways_to_fit(config, run, nearest.choice, nearest.budget));
}

}  // namespace

std::string size_text(size_t bytes) {
  const auto size = static_cast<double>(bytes);
  return size < 0x1p30 ? fmt::format("{:.1f} MiB", size * 0x1p-20)
                       : fmt::format("{:.2f} GiB", size * 0x1p-30);
}

std::string needs_text(const MemoryByKind& bytes) {
  std::vector<std::string> needs;
  for (size_t kind = 0; kind < kMemoryKinds; ++kind) {
    if (bytes.at(kind) > 0) {
      needs.push_back(
          fmt::format("{} {}", name_of(static_cast<Memory>(kind)), size_text(bytes.at(kind))));
    }
  }
  return fmt::format("{}", fmt::join(needs, ", "));
}

MemoryByKind bytes_now(const Arena& arena) {
  MemoryByKind bytes{};
  for (size_t kind = 0; kind < kMemoryKinds; ++kind) {
    bytes.at(kind) = arena.use(static_cast<Memory>(kind)).now;
  }
  return bytes;
}

MemoryByKind bytes_at_peak(const Arena& arena) {
  MemoryByKind bytes{};
  for (size_t kind = 0; kind < kMemoryKinds; ++kind) {
    bytes.at(kind) = arena.at_peak(static_cast<Memory>(kind));
  }
  return bytes;
}

size_t sum_of(const MemoryByKind& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), size_t{0});
}

size_t model_state_of(const MemoryByKind& bytes) {
  return std::accumulate(bytes.begin(), bytes.begin() + static_cast<size_t>(Memory::index) + 1,
                         size_t{0});
}

int64_t share_of(const io::Config& config, int ranks) {
  const int64_t batch = config.train.global_batch;
  check(
      batch % ranks == 0,
      "train.global_batch = {} cannot be divided among {} ranks: use a multiple of {}, or another "
      "number of ranks",
      batch, ranks, ranks);
  return batch / ranks;
}

Fit fit_memory(const io::Config& config, const RunShape& run) {
  const bool limited = !config.train.memory_budget.empty();
  Fit fit;
  fit.budget = limited ? static_cast<size_t>(config::parse_bytes(config.train.memory_budget)) : 0;
  const auto micros = micro_batches(config, share_of(config, run.ranks), limited);
  const auto recompute_choices = recomputes(config, limited);
  const PassChoice first{.micro_batch = micros.front(), .recompute = recompute_choices.front()};
  size_t first_needs = 0;
  const bool any =
      std::ranges::any_of(micros, [&](int64_t micro) { return schedulable(config, run, micro); });
  for (const Recompute recompute : recompute_choices) {
    for (const int64_t micro : micros) {
      if (any && !schedulable(config, run, micro)) {
        continue;
      }
      fit.choice = {.micro_batch = micro, .recompute = recompute};
      fit.plan = plan_memory(config, run, fit.choice);
      first_needs = fit.choice == first ? fit.plan.needed() : first_needs;
      if (!limited || fit.plan.needed() <= fit.budget) {
        if (limited && fit.choice != first) {
          fit.note =
              fmt::format("train.memory_budget = \"{}\": {}, {} a rank; {} would need {}",
                          config.train.memory_budget, text_of(fit.choice),
                          size_text(fit.plan.needed()), text_of(first), size_text(first_needs));
        }
        fit.copies_checkpoints = has_room_for_copies(config, run, fit);
        if (run.stages && fit.choice.recompute != recompute_choices.front()) {
          fit.by_rank = least_by_rank(config, run, fit, recompute_choices);
          std::vector<std::string_view> names;
          std::ranges::transform(fit.by_rank, std::back_inserter(names), model::name_of);
          fit.note += fmt::format("; pipeline ranks recompute {}", fmt::join(names, ", "));
        }
        return fit;
      }
    }
  }
  fail_to_fit(config, run, fit);
}

std::string no_copy_note(const io::Config& config, size_t copy) {
  return fmt::format(
      "train.memory_budget = \"{}\" has no room for the {} of a checkpoint's copy: steps wait "
      "while checkpoints are written",
      config.train.memory_budget, size_text(copy));
}

std::string ways_to_fit(const io::Config& config, const RunShape& run, const PassChoice& choice,
                        size_t bytes) {
  std::vector<std::string> texts;
  ChangedRun all{config, choice};
  bool any_fits = false;
  const std::vector<Way> ways = ways_of(config, run, choice);
  for (const Way& way : ways) {
    size_t needed = 0;
    if (way.apply) {
      ChangedRun changed{config, choice};
      way.apply(changed);
      way.apply(all);
      needed = needed_with(run, changed);
      any_fits = any_fits || (needed > 0 && needed <= bytes);
    }
    texts.push_back(way.text + verdict(needed, bytes));
  }
  if (!any_fits && std::ranges::count_if(ways, [](const Way& way) { return !!way.apply; }) > 1) {
    texts.push_back("all those with a size here" + verdict(needed_with(run, all), bytes));
  }
  texts.emplace_back("a smaller model");
  return fmt::format("To fit, with what a rank would then need: {}", fmt::join(texts, "; "));
}

std::string check_device(const io::Config& config, const RunShape& run, const Fit& fit,
                         size_t available) {
  const size_t needed = fit.plan.needed();
  if (available == std::numeric_limits<size_t>::max()) {
    return {};  // unknown
  }
  if (static_cast<double>(needed) <= kNear * static_cast<double>(available)) {
    return fmt::format(
        "the plan was {} of {} that were free before the start: something else takes the device's "
        "memory (see nvidia-smi)",
        size_text(needed), size_text(available));
  }
  const std::string ways = ways_to_fit(config, run, fit.choice, available);
  check(
      needed <= available,
      "the device has {} free: with micro_batch = {} and recompute = \"{}\" a rank needs {} ({}). "
      "{}",
      size_text(available), fit.choice.micro_batch, name_of(fit.choice.recompute),
      size_text(needed), needs_text(fit.plan.peak), ways);
  return ways;
}

}  // namespace espalier::train
