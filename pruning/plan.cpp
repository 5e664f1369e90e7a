#include "pruning/plan.h"

#include <algorithm>
#include <array>
#include <utility>

#include "pruning/drop_grow.h"
#include "pruning/early_bird.h"
#include "pruning/kinds/kinds.h"
#include "pruning/registry.h"
#include "pruning/regrowth.h"

namespace espalier::pruning {
namespace {

std::vector<int64_t> sizes_of(std::span<const sparse::ParameterSpec> specs) {
  std::vector<int64_t> sizes;
  for (const sparse::ParameterSpec& spec : specs) {
    sizes.push_back(spec.shape.count());
  }
  return sizes;
}

/// Kept elements of each parameter in the random start of moving masks.
std::vector<int64_t> kept_at_random_start(const io::PruningConfig& config, const Network& network) {
  std::vector<int64_t> kept = sizes_of(network.specs);
  std::vector<Shape> shapes;
  for (size_t p = 0; p < kept.size(); ++p) {
    if (network.prunable[p]) {
      shapes.push_back(network.specs[p].shape);
    }
  }
  const std::vector<int64_t> counts =
      start_counts(shapes, config.sparsity, distribution_by_name(config.distribution));
  size_t next = 0;
  for (size_t p = 0; p < kept.size(); ++p) {
    if (network.prunable[p]) {
      kept[p] = counts[next++];
    }
  }
  return kept;
}

/// Whether `now` has the sparsity over all prunable parameters, and not in each, as masks of --init
/// may: pruning then changes nothing (kinds/scheduled.h).
bool has_sparsity(const std::vector<int64_t>& now, const Network& network, double sparsity) {
  int64_t kept = 0;
  int64_t target = 0;
  int64_t matrices = 0;
  bool sparser = false;
  for (size_t p = 0; p < now.size(); ++p) {
    if (network.prunable[p]) {
      const int64_t wanted = kept_count(network.specs[p].shape.count(), sparsity);
      kept += now[p];
      target += wanted;
      ++matrices;
      sparser = sparser || now[p] < wanted;
    }
  }
  return sparser && kept <= target + matrices;
}

bool waits(const Method& method) {
  const auto* once = std::get_if<OneShot>(&method.kind);
  return once != nullptr && once->waits;
}

bool moves(const Method& method) { return std::holds_alternative<Moving>(method.kind); }

bool from_file(const Method& method) {
  return method.run == nullptr && !std::holds_alternative<Calibrated>(method.kind);
}

/// Of one number for each of so many elements.
size_t float_bytes(int64_t elements) { return sizeof(float) * static_cast<size_t>(elements); }

/// Of MaskHistory.
size_t history_bytes(const Method& method, const sparse::Store& store) {
  return waits(method) ? static_cast<size_t>(kComparedMasks) * store.mask_bytes() / 2 : 0;
}

}  // namespace

void validate(const io::PruningConfig& config, const RunFacts& run) {
  const Method& method = method_of(config);
  std::visit([&](const auto& kind) { validate(kind, config, run); }, method.kind);
  if (method.check_config != nullptr) {
    method.check_config(config);
  }
  const bool ends_alone = (moves(method) || waits(method)) && config.from_step < 0;
  check(ends_alone || (config.from_step >= 0) == (config.to_step >= 0),
        "gradual pruning needs both pruning.from_step (now {}) and pruning.to_step (now {}); set "
        "both, or neither",
        config.from_step, config.to_step);
  check(!config.gradual() || config.from_step < config.to_step,
        "pruning.from_step = {} is not below pruning.to_step = {}; set a later pruning.to_step",
        config.from_step, config.to_step);
  check(!config.gradual() || config.at_step < 0,
        "pruning.at_step = {} (once) and from_step, to_step (gradual) exclude each other; set one",
        config.at_step);
  check(from_file(method) == !config.file.empty(),
        "pruning.file = \"{}\" and pruning.method = \"{}\" do not match; set a file with method "
        "\"file\", and none with any other method",
        config.file, config.method);
  const std::vector<int64_t> prunings = pruning_steps(config);
  check_regrowths(config, run.steps, prunings.empty() ? -1 : prunings.back());
}

void check_in_time(const io::PruningConfig& config, int64_t steps) {
  const Method& method = method_of(config);
  if (!config.prunes() || waits(method)) {
    return;  // a method that waits may prune at any earlier step
  }
  const PruningSchedule schedule = pruning_schedule_of(config);
  const int64_t from = schedule.from_step;
  check(from < steps,
        "pruning.{} = {} lies after the last step, train.steps = {}: nothing would be pruned; "
        "prune earlier, or set pruning.method = \"none\"",
        from == config.at_step     ? "at_step"
        : from == config.from_step ? "from_step"
                                   : "to_step",
        from, steps);
  const int64_t first = from_file(method) ? from : first_prune_step(schedule);
  check(first < steps,
        "gradual pruning from pruning.from_step = {} first prunes after step {}, the run's last or "
        "later (train.steps = {}): nothing would be pruned; set an earlier pruning.from_step, or a "
        "smaller pruning.every",
        from, first, steps);
}

bool reads_key(const io::PruningConfig& config, std::string_view key) {
  const Method& method = method_of(config);
  const bool in_runs = config.prunes() && !std::holds_alternative<Calibrated>(method.kind);
  const bool file = method.run == nullptr && in_runs;
  const bool chosen = config.prunes() && !file && method.sparsity == nullptr;
  const sparse::IndexShape shape =
      method.shape == nullptr ? sparse::IndexShape{} : method.shape(config);
  // Masks of moving methods begin at random unless pruning.at_step draws them by `run`.
  const bool random_start = std::holds_alternative<Moving>(method.kind) && config.at_step < 0;
  const std::array<std::pair<std::string_view, bool>, 12> readers{{
      {"method", true},
      {"exclude", true},
      {"dense_from_step", true},
      {"sparsity", chosen},
      {"at_step", in_runs},
      {"from_step", chosen && in_runs},
      {"to_step", chosen && in_runs},
      {"scope", config.prunes() && !file && !method.by_layer && !random_start},
      {"n", shape.n > 0},
      {"m", shape.n > 0},
      {"block", shape.height > 0},
      {"file", file},
  }};
  const auto* found = std::ranges::find(readers, key, [](const auto& one) { return one.first; });
  if (found != readers.end()) {
    return found->second;
  }
  return (key == "seed" && method.random) ||
         std::visit([&](const auto& kind) { return reads(kind, config, key); }, method.kind);
}

int arrays_of(const io::PruningConfig& config) {
  const auto* learning = std::get_if<Learning>(&method_of(config).kind);
  return learning != nullptr ? learning->arrays : 0;
}

sparse::IndexShape shape_of(const io::PruningConfig& config) {
  const Method& method = method_of(config);
  return method.shape != nullptr ? method.shape(config) : sparse::IndexShape();
}

bool makes_single_elements(const io::PruningConfig& config) {
  return shape_of(config).height == 0 && !from_file(method_of(config));
}

std::vector<int64_t> pruning_steps(const io::PruningConfig& config) {
  if (!config.prunes()) {
    return {};
  }
  const PruningSchedule schedule = pruning_schedule_of(config);
  return from_file(method_of(config)) ? std::vector<int64_t>{schedule.from_step}
                                      : prune_steps(schedule);
}

bool may_change(const io::PruningConfig& config, int64_t step, int64_t end, int64_t steps) {
  const Method& method = method_of(config);
  const bool once = config.at_step >= step && config.at_step <= end;
  const bool gradual = config.gradual() && end > config.from_step && step <= config.to_step;
  const bool moving = (moves(method) || waits(method)) && step <= config.last_move(steps);
  const bool grows = std::ranges::any_of(regrowths_of(config, steps), [&](const Regrowth& one) {
    return one.step >= step && one.step <= end;
  });
  return grows || (config.prunes() && (once || gradual || moving));
}

std::vector<int64_t> kept_after(const io::PruningConfig& config, const Network& network,
                                int64_t step, std::vector<int64_t> now,
                                const std::function<std::vector<int64_t>()>& in_file) {
  if (!config.prunes()) {
    return now;
  }
  const Method& method = method_of(config);
  if (moves(method) && method.sparsity == nullptr && step == 0 && !config.gradual() &&
      now == sizes_of(network.specs)) {
    return kept_at_random_start(config, network);
  }
  if (from_file(method)) {
    const std::vector<int64_t> kept = in_file();
    for (size_t p = 0; p < now.size(); ++p) {
      now[p] = std::min(now[p], kept[p]);
    }
    return now;
  }
  const double sparsity = target_sparsity(pruning_schedule_of(config), step);
  if (method.shape == nullptr && has_sparsity(now, network, sparsity)) {
    return now;
  }
  for (size_t p = 0; p < now.size(); ++p) {
    if (network.prunable[p]) {
      now[p] = std::min(now[p], kept_count(network.specs[p].shape.count(), sparsity));
    }
  }
  return now;
}

std::optional<FirstMasks> first_masks(const io::PruningConfig& config, uint64_t seed) {
  const Method& method = method_of(config);
  if (!config.prunes() || pruning_schedule_of(config).to_step != 0 || from_file(method) ||
      reads_scores(method)) {
    return {};
  }
  Settings settings = settings_of(config, seed);
  settings.sparsity = target_sparsity(pruning_schedule_of(config), 0);
  if (moves(method)) {
    return FirstMasks{.make = [settings, spread = distribution_by_name(config.distribution)](
                                  std::span<const Candidate> candidates) {
      return random_start(candidates, settings, spread).masks;
    }};
  }
  const bool alone = method.by_layer || scope_of(config) == Scope::layer;
  if (!alone && method.needs_values) {
    return {};
  }
  return FirstMasks{.alone = alone,
                    .reads_values = method.needs_values,
                    .make = [settings](std::span<const Candidate> candidates) {
                      return prune(candidates, settings).masks;
                    }};
}

sparse::Mask example_mask(const io::PruningConfig& config, const sparse::ParameterSpec& spec,
                          int64_t kept) {
  const int64_t size = spec.shape.count();
  if (kept == 0 || kept == size) {
    return sparse::Mask(size, kept == size);
  }
  Settings settings = settings_of(config, 1);
  if (method_of(config).shape == nullptr) {
    settings.method = "random";
  }
  settings.scope = Scope::global;  // a parameter may then be left empty
  const Method& method = method_by_name(settings.method);
  if (method.sparsity == nullptr) {
    settings.sparsity = 1 - static_cast<double>(kept) / static_cast<double>(size);
  }
  const sparse::Index all = sparse::Index::full(size);
  std::vector<float> values;
  if (method.needs_values) {
    values = sparse::initial_values(spec, all, 1);
  }
  const std::vector<Candidate> candidates{{spec.name, spec.shape, &all, values}};
  return std::move(prune(candidates, settings).masks.front());
}

void plan_pruning(const io::PruningConfig& config, const sparse::Store& store,
                  const PlannedGradients& gradients) {
  const Method& method = method_of(config);
  const size_t numbers = float_bytes(store.total_kept());
  if (const auto* once = std::get_if<OneShot>(&method.kind); once != nullptr && once->score) {
    gradients(sparse::Store::Probed::prunable, numbers + 2 * float_bytes(store.largest_kept()));
  }
  store.arena().note_heap(store.mask_bytes() + history_bytes(method, store) +
                          (method.needs_values ? numbers : 0) +
                          (reads_scores(method) ? numbers : 0));
}

bool plan_move(const io::PruningConfig& config, const sparse::Store& store,
               const PlannedGradients& gradients) {
  const auto* moving = std::get_if<Moving>(&method_of(config).kind);
  if (moving == nullptr || sparsity_of(config) == 0) {
    return false;
  }
  store.arena().note_heap(store.mask_bytes() + float_bytes(store.largest_kept()));
  if (moving->by_gradient) {
    gradients(sparse::Store::Probed::pruned, store.mask_bytes());
  }
  return true;
}

void plan_history(const io::PruningConfig& config, const sparse::Store& store) {
  store.arena().note_heap(history_bytes(method_of(config), store));
}

bool keeps_history(const io::PruningConfig& config) { return waits(method_of(config)); }

}  // namespace espalier::pruning
