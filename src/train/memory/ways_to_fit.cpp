// What to tell a user whose run does not fit, from plans of the run with each thing changed.
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "src/train/exchange/exchange.h"
#include "src/train/exchange/value_wire.h"
#include "src/train/memory/budget.h"

namespace espalier::train {
namespace {

using model::Recompute;

/// A run that is near to what there is may run out for reasons that no plan knows.
constexpr double kNear = 0.8;

struct Changed {
  io::Config config;
  PassChoice choice;
};

struct Way {
  std::string text;
  std::function<void(Changed&)> apply;  ///< empty: not planned
};

/// Most effective first; only what is not so already.
std::vector<Way> ways_out(const io::Config& config, const RunShape& run, const PassChoice& choice) {
  std::vector<Way> ways;
  auto add = [&ways](bool applies, std::string text, std::function<void(Changed&)> apply = {}) {
    if (applies) {
      ways.push_back({std::move(text), std::move(apply)});
    }
  };
  const bool prunes = config.pruning.method != "none";
  const std::string storage = run.place.device ? "expanded" : "sparse";
  add(!prunes && !run.start.pruned, "prune from the start (pruning.method = \"random\")");
  add(prunes && !run.start.pruned,
      "prune from the start, so that dense state never exists (pruning.method = \"random\", "
      "pruning.at_step = -1)");
  add((prunes || run.start.pruned) && config.sparse.storage.fallback == "dense",
      fmt::format("sparse.storage = \"{}\" (no dense copies)", storage),
      [storage](Changed& to) { to.config.sparse.storage.fallback = storage; });
  add(config.train.dtype == "fp32", "train.dtype = \"bf16\"",
      [](Changed& to) { to.config.train.dtype = "bf16"; });
  add(config.optimizer.state_bits == 32, "optimizer.state_bits = 8",
      [](Changed& to) { to.config.optimizer.state_bits = 8; });
  add(config.train.dtype != "fp32" && config.train.master_copy && !codes_values(config),
      "train.master_copy = false", [](Changed& to) { to.config.train.master_copy = false; });
  add(run.place.device && !config.optimizer.offload, "optimizer.offload = true",
      [](Changed& to) { to.config.optimizer.offload = true; });
  add(run.ranks > 1 && config.parallel.zero == 0, "parallel.zero = 1",
      [](Changed& to) { to.config.parallel.zero = 1; });
  const bool chooses = !config.train.memory_budget.empty();
  add(choice.recompute != Recompute::full,
      fmt::format("train.recompute = \"{}\"", chooses ? "auto" : "full"),
      [](Changed& to) { to.choice.recompute = Recompute::full; });
  add(choice.micro_batch > 1,
      chooses ? "train.micro_batch = 0 (automatic)" : "train.micro_batch = 1",
      [](Changed& to) { to.choice.micro_batch = 1; });
  return ways;
}

/// Bytes of a rank; 0 where that cannot be planned.
size_t needed_with(const RunShape& run, const Changed& changed) {
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

}  // namespace

std::string ways_to_fit(const io::Config& config, const RunShape& run, const PassChoice& choice,
                        size_t bytes) {
  std::vector<std::string> told;
  Changed all{config, choice};
  bool any_fits = false;
  const std::vector<Way> ways = ways_out(config, run, choice);
  for (const Way& way : ways) {
    size_t needed = 0;
    if (way.apply) {
      Changed changed{config, choice};
      way.apply(changed);
      way.apply(all);
      needed = needed_with(run, changed);
      any_fits = any_fits || (needed > 0 && needed <= bytes);
    }
    told.push_back(way.text + verdict(needed, bytes));
  }
  if (!any_fits && std::ranges::count_if(ways, [](const Way& way) { return !!way.apply; }) > 1) {
    told.push_back("all those with a size here" + verdict(needed_with(run, all), bytes));
  }
  told.emplace_back("a smaller model");
  return fmt::format("Ways out, with what a rank would need then: {}", fmt::join(told, "; "));
}

std::string check_device(const io::Config& config, const RunShape& run, const Fit& fit,
                         size_t available) {
  const size_t needed = fit.plan.needed();
  if (available == std::numeric_limits<size_t>::max()) {
    return {};  // nobody knows
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
