#include "src/planner/equal_time.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "pruning/plan.h"
#include "pruning/registry.h"
#include "pruning/regrowth.h"
#include "src/config/parse.h"
#include "src/core/error.h"
#include "src/model/networks/registry.h"
#include "src/optim/parametrization.h"
#include "src/optim/schedule.h"

namespace espalier::planner {
namespace {

using Kind = Contender::Kind;

// Widths of other networks, as shares of the config's. In nanoGPT's CPU setting a dense network of
// 0.5 is better than wider ones (docs/results.md).
constexpr double kSmaller[] = {0.375, 0.5, 0.75};
constexpr double kWider = 1.5;
constexpr const char* kDenseFrom = "0.8";  ///< share of the steps

std::string name_of(std::string_view name, double share) {
  return share == 1 ? std::string(name) : fmt::format("{}-{}-width", name, share);
}

void scale(io::Config& config, double share, bool trained) {
  const model::NetworkKind& kind = model::network_of(config.model);
  check(!trained, "the weights to start from (--init) have one width");
  check(kind.scaled != nullptr, "networks of model.kind = \"{}\" have no width", kind.name);
  check(config.pruning.method != "file", "the masks of pruning.file have one width");
  const auto scaled = kind.scaled(config.model, share);
  check(scaled.has_value(), "no network of about {} times the width has whole heads", share);
  // An mlp has widths of its own, for which there is no base.
  const bool has_base = scaled->width != config.model.width;
  if (has_base && config.train.base_width == 0 && optim::Parametrization(config).scales()) {
    config.train.base_width = config.model.width;
  }
  config.model = *scaled;
}

/// {step: sparsity after it}, from step 0 on.
std::map<int64_t, double> sparsities_of(const io::Config& config) {
  std::map<int64_t, double> changes{{0, 0.0}};
  if (config.pruning.prunes()) {
    const auto schedule = pruning::pruning_schedule_of(config.pruning);
    for (const int64_t step : pruning::pruning_steps(config.pruning)) {
      changes[step] = step >= schedule.to_step ? pruning::sparsity_of(config.pruning)
                                               : pruning::target_sparsity(schedule, step);
    }
  }
  for (const auto& [step, sparsity] : pruning::regrowths_of(config.pruning, config.train.steps)) {
    changes[step] = sparsity;
  }
  return changes;
}

}  // namespace

Contenders contenders_of(const io::Config& config, bool trained) {
  const io::Config base = optim::with_learning_rate(config, trained);
  io::PruningConfig sparse = base.pruning;
  sparse.dense_from_step.clear();
  if (!sparse.prunes()) {
    sparse.method = "random";
    sparse.scope = "layer";
  }
  io::PruningConfig dense_last = sparse;
  dense_last.dense_from_step =
      base.pruning.dense_from_step.empty() ? kDenseFrom : base.pruning.dense_from_step;
  Contenders all;
  const auto add = [&](const std::string& name, Kind kind, const io::PruningConfig& pruning,
                       double share) {
    Contender one{.name = name_of(name, share),
                  .kind = kind,
                  .config = base,
                  .unpruned = name_of("dense", share),
                  .pruned = name_of("sparse", share)};
    one.config.pruning = pruning;
    try {
      if (share != 1) {
        scale(one.config, share, trained);
      }
      config::validate(one.config);
      config::check_prunes_in_time(one.config);
      all.found.push_back(std::move(one));
    } catch (const Failure& failure) {
      check(kind != Kind::dense, "the dense network cannot be trained: {}", failure.what());
      all.left_out.push_back({one.name, failure.what()});
    }
  };
  add("dense", Kind::dense, {}, 1);
  for (const double share : kSmaller) {
    add("dense", Kind::smaller_dense, {}, share);
  }
  add("sparse", Kind::sparse, sparse, 1);
  add("sparse", Kind::sparse, sparse, kWider);
  add("sparse-then-dense", Kind::sparse, dense_last, 1);
  const auto is_sparse = [](const Contender& one) { return one.kind == Kind::sparse; };
  check(std::ranges::any_of(all.found, is_sparse), "no sparse network can be trained: {}",
        all.left_out.empty() ? "" : all.left_out.back().reason);
  return all;
}

io::Config with_steps(io::Config config, int64_t steps) {
  const auto before = static_cast<double>(config.train.steps);
  const double by = static_cast<double>(steps) / before;
  const auto scaled = [&](int64_t& count) {
    if (count > 0) {
      count = std::max<int64_t>(1, std::llround(static_cast<double>(count) * by));
    }
  };
  io::PruningConfig& pruning = config.pruning;
  for (int64_t* count :
       {&config.optimizer.warmup_steps, &pruning.at_step, &pruning.from_step, &pruning.to_step,
        &pruning.every, &config.train.eval_every, &config.train.checkpoint_every}) {
    scaled(*count);
  }
  auto& decays = config.optimizer.decay_at;
  std::ranges::for_each(decays, scaled);
  decays.erase(std::unique(decays.begin(), decays.end()), decays.end());
  std::vector<std::string> stages;
  for (const auto& [step, sparsity] : pruning::regrowths_of(pruning, config.train.steps)) {
    stages.push_back(fmt::format("{}:{}", static_cast<double>(step) / before, sparsity));
  }
  pruning.dense_from_step = fmt::format("{}", fmt::join(stages, ","));
  config.train.steps = steps;
  return config;
}

StepCounts step_counts(const io::Config& config) {
  const double whole = config.pruning.prunes() ? pruning::sparsity_of(config.pruning) : 0;
  const std::map<int64_t, double> changes = sparsities_of(config);
  StepCounts counts;
  for (auto at = changes.begin(); at != changes.end(); ++at) {
    const int64_t end = std::next(at) == changes.end() ? config.train.steps : std::next(at)->first;
    const auto steps = static_cast<double>(std::max<int64_t>(0, end - at->first));
    const double share = whole > 0 ? (whole - at->second) / whole : 1;
    counts.unpruned += steps * share;
    counts.pruned += steps * (1 - share);
  }
  return counts;
}

int64_t steps_within(const io::Config& config, const StepSeconds& step, double seconds) {
  constexpr double kMost = 1e9;
  const double whole = step.of(step_counts(config));
  auto steps = static_cast<int64_t>(
      std::min(kMost, seconds / whole * static_cast<double>(config.train.steps) + 1e-6));
  // Shares of the run are rounded to whole steps, which changes the time a little.
  while (steps > 0 && step.of(step_counts(with_steps(config, steps))) > seconds * (1 + 1e-6)) {
    --steps;
  }
  return steps;
}

int best_rate(const RateLosses& losses) {
  require(!losses.empty(), "a rate that was tried");
  return std::ranges::min_element(losses, {}, [](const auto& one) { return one.second; })->first;
}

std::optional<int> next_rate(const RateLosses& losses) {
  if (losses.empty()) {
    return 0;
  }
  const int best = best_rate(losses);  // the least one, while all have failed: go down
  for (const int next : {best - 1, best + 1}) {
    const bool useful = next < best || std::isfinite(losses.at(best));
    if (useful && !losses.contains(next) && std::abs(next) <= kMostDoublings) {
      return next;
    }
  }
  return {};
}

double mean_of(std::span<const double> losses) {
  return losses.empty() ? std::numeric_limits<double>::infinity()
                        : std::accumulate(losses.begin(), losses.end(), 0.0) /
                              static_cast<double>(losses.size());
}

std::optional<double> deviation_of(std::span<const double> losses) {
  if (losses.size() < 2) {
    return {};
  }
  double squares = 0;
  for (const double loss : losses) {
    squares += (loss - mean_of(losses)) * (loss - mean_of(losses));
  }
  return std::sqrt(squares / static_cast<double>(losses.size() - 1));
}

const TunedLosses* best_of(std::span<const TunedLosses> all, Kind kind) {
  const TunedLosses* best = nullptr;
  for (const TunedLosses& one : all) {
    const bool contender = !one.losses.empty() && one.kind == kind;
    if (contender && (best == nullptr || one.mean() < best->mean())) {
      best = &one;
    }
  }
  return best;
}

std::vector<std::string> answer(std::span<const TunedLosses> all) {
  const TunedLosses* dense = best_of(all, Kind::dense);
  const TunedLosses* smaller = best_of(all, Kind::smaller_dense);
  const bool narrower = smaller != nullptr && (dense == nullptr || smaller->mean() < dense->mean());
  const TunedLosses* rival = narrower ? smaller : dense;
  std::vector<const TunedLosses*> sparse;
  for (const TunedLosses& one : all) {
    if (one.kind == Kind::sparse && !one.losses.empty()) {
      sparse.push_back(&one);
    }
  }
  if (rival == nullptr || sparse.empty()) {
    return {"There is no answer: the runs of all dense or of all sparse networks failed."};
  }
  const auto square_error = [](const TunedLosses& one) {  // of the mean
    const double deviation = deviation_of(one.losses).value_or(NAN);
    return deviation * deviation / static_cast<double>(one.losses.size());
  };
  std::ranges::stable_sort(sparse, std::greater<>(), &TunedLosses::mean);
  std::vector<std::string> sentences;
  bool pays = false;
  for (const TunedLosses* one : sparse) {
    const double apart = one->mean() - rival->mean();
    const double error = std::sqrt(square_error(*one) + square_error(*rival));  // NaN: unknown
    const bool noise = std::abs(apart) <= 2 * error;
    pays = pays || (apart < 0 && !noise);
    sentences.push_back(fmt::format(
        "{} ends {:.4f} ({}) {} the best dense network, {}{}.", one->name, std::abs(apart),
        std::isnan(error) ? "one seed: error unknown" : fmt::format("± {:.4f}", error),
        apart < 0 ? "below" : "above", rival->name,
        noise       ? ": no more than seeds differ"
        : apart < 0 ? ": it pays"
                    : ": it does not pay"));
  }
  if (!pays) {
    sentences.insert(sentences.begin(), "Sparsity does not pay here.");
  }
  if (narrower && rival->name == name_of("dense", kSmaller[0])) {
    sentences.push_back(fmt::format(
        "{} is the narrowest dense network tried; a narrower one may be better.", rival->name));
  }
  if (smaller == nullptr) {
    sentences.emplace_back("No smaller dense network has a result; one may be better.");
  }
  return sentences;
}

}  // namespace espalier::planner
