#include "src/train/masks/pruner.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "io/checkpoint/checkpoint.h"
#include "parallel/transport/collectives.h"
#include "parallel/transport/digest.h"
#include "pruning/drop_grow.h"
#include "pruning/registry.h"
#include "src/core/mirror.h"
#include "src/train/masks/mask_files.h"

namespace espalier::train {
namespace {

/// The masks of a checkpoint, intersected with the current ones.
std::vector<sparse::Mask> masks_from_file(const std::string& file, sparse::Store& store) {
  const io::CheckpointReader reader(file);
  check_same_parameters(reader, specs_of(store), false);
  std::vector<sparse::Mask> masks = store.masks();
  for (size_t p = 0; p < masks.size(); ++p) {
    const sparse::Mask wanted = read_mask(reader, store.parameters()[p].spec.name);
    for (int64_t i = 0; i < masks[p].size(); ++i) {
      if (masks[p][i] && !wanted[i]) {
        masks[p].set(i, false);
      }
    }
  }
  return masks;
}

pruning::Candidate candidate_of(const sparse::Parameter& parameter, std::span<const float> values) {
  return {.name = parameter.spec.name,
          .shape = parameter.spec.shape,
          .index = &parameter.index,
          .values = values,
          .parts = parameter.spec.flow.parts};
}

/// Number of a parameter in the store; the number of all if it is not there.
size_t place_of(const sparse::Store& store, std::string_view name) {
  const auto all = store.parameters();
  return static_cast<size_t>(
      std::ranges::find_if(all, [&](const auto& some) { return some.spec.name == name; }) -
      all.begin());
}

/// The prunable parameters, without values.
std::vector<pruning::Candidate> shapes_of(const sparse::Store& store,
                                          const std::vector<bool>& prunable) {
  std::vector<pruning::Candidate> candidates;
  for (size_t p = 0; p < prunable.size(); ++p) {
    if (prunable[p]) {
      candidates.push_back(candidate_of(store.parameters()[p], {}));
    }
  }
  return candidates;
}

/// Masks of all parameters: `chosen` for the prunable ones, the current masks for the others.
pruning::Result among_all(const sparse::Store& store, const std::vector<bool>& prunable,
                          pruning::Result chosen) {
  pruning::Result all{.masks = store.masks(), .warnings = std::move(chosen.warnings)};
  size_t next = 0;
  for (size_t p = 0; p < prunable.size(); ++p) {
    if (prunable[p]) {
      all.masks[p] = std::move(chosen.masks[next++]);
    }
  }
  return all;
}

/// Elements of [first, first + count) that the mask keeps.
int64_t ones_in(const sparse::Mask& mask, int64_t first, int64_t count) {
  int64_t ones = 0;
  for (int64_t i = first; i < first + count; ++i) {
    ones += mask[i] ? 1 : 0;
  }
  return ones;
}

/// Number of elements kept in `now` but not in `before`.
int64_t grown(const sparse::Mask& before, const sparse::Mask& now) {
  int64_t count = 0;
  for (size_t w = 0; w < now.words().size(); ++w) {
    count += std::popcount(now.words()[w] & ~before.words()[w]);
  }
  return count;
}

/// The elements of an array of any number type, times `factor`.
std::vector<float> numbers_of(Stream& stream, const Tensor& array, double factor) {
  std::vector<float> numbers;
  const Mirror mirror(stream, array);
  with_number(array.dtype, [&]<class Number>(Number) {
    const auto by = static_cast<float>(factor);
    std::ranges::transform(mirror.read().host().span<Number>(), std::back_inserter(numbers),
                           [by](Number x) { return to_float(x) * by; });
  });
  return numbers;
}

/// Writes numbers times `factor` to the array, rounded.
void write_numbers(Stream& stream, std::span<const float> numbers, double factor,
                   const Tensor& array) {
  const Mirror mirror(stream, array);
  with_number(array.dtype, [&]<class Number>(Number) {
    const auto by = static_cast<float>(factor);
    std::ranges::transform(numbers, mirror.host().get<Number>(),
                           [by](float x) { return from_float<Number>(x * by); });
  });
  mirror.write();
}

void sum_over(parallel::Communicator& comm, std::span<int64_t> counts) {
  std::vector<int64_t> all(counts.size() * static_cast<size_t>(comm.size()));
  parallel::all_gather(comm, std::as_bytes(counts), std::as_writable_bytes(std::span(all)));
  std::ranges::fill(counts, 0);
  for (size_t i = 0; i < all.size(); ++i) {
    counts[i % counts.size()] += all[i];
  }
}

std::vector<std::vector<std::byte>> gather_from(parallel::Communicator& comm,
                                                std::span<const std::byte> mine) {
  const std::array<int64_t, 1> length{static_cast<int64_t>(mine.size())};
  std::vector<int64_t> lengths(static_cast<size_t>(comm.size()));
  parallel::all_gather(comm, std::as_bytes(std::span(length)),
                       std::as_writable_bytes(std::span(lengths)));
  std::vector<Range> ranges;
  int64_t end = 0;
  for (const int64_t some : lengths) {
    ranges.push_back({.first = end, .count = some});
    end += some;
  }
  std::vector<std::byte> whole(static_cast<size_t>(end));
  parallel::gather_slices(comm, {.ranges = ranges, .mine = mine, .whole = whole});
  std::vector<std::vector<std::byte>> parts;
  for (const Range& range : ranges) {
    const auto begin = whole.begin() + range.first;
    parts.emplace_back(begin, begin + range.count);
  }
  return parts;
}

}  // namespace

std::vector<bool> prunable_of(std::span<const sparse::ParameterSpec> specs,
                              const io::PruningConfig& config) {
  std::vector<pruning::ParameterInfo> infos;
  for (const sparse::ParameterSpec& spec : specs) {
    infos.push_back({spec.name, spec.shape, spec.prunable});
  }
  return pruning::prunable(infos, config.exclude);
}

std::vector<bool> prunable_of(const sparse::Store& store, const io::PruningConfig& config) {
  return prunable_of(specs_of(store), config);
}

pruning::Result compute_masks(sparse::Store& store, const std::vector<bool>& prunable,
                              const pruning::Settings& settings, const StoreScope& scope) {
  const auto parameters = store.parameters();
  const pruning::Method& method = pruning::method_by_name(settings.method);
  std::vector<std::vector<float>> values(parameters.size());  // outlive the candidates' views
  std::vector<pruning::Candidate> candidates;
  std::vector<pruning::Candidate> others;  // on the paths, but not pruned
  std::vector<const pruning::Candidate*> by_parameter(parameters.size(), nullptr);
  candidates.reserve(parameters.size());
  others.reserve(parameters.size());
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!prunable[p] && !(method.needs_paths && parameters[p].spec.prunable)) {
      continue;
    }
    if (method.needs_values) {
      values[p] = store.values(parameters[p]);
    }
    auto& list = prunable[p] ? candidates : others;
    by_parameter[p] = &list.emplace_back(candidate_of(parameters[p], values[p]));
  }
  pruning::Settings chosen = settings;
  pruning::Paths paths;
  if (method.needs_paths) {
    for (const sparse::ParameterSpec& spec :
         scope.network.empty() ? specs_of(store) : scope.network) {
      if (spec.prunable) {
        const size_t p = place_of(store, spec.name);
        const bool here = p < parameters.size();
        paths.matrices.push_back({.shape = spec.shape,
                                  .flow = spec.flow,
                                  .here = here ? by_parameter[p] : nullptr,
                                  .pruned = here && prunable[p]});
      }
    }
    chosen.paths = &paths;
  }
  return among_all(store, prunable, pruning::prune(candidates, chosen));
}

pruning::GlobalSelection make_global_selection(parallel::Communicator& comm, size_t candidates,
                                               std::vector<size_t> mine) {
  return {.candidates = candidates,
          .mine = std::move(mine),
          .sum = [&comm](std::span<int64_t> counts) { sum_over(comm, counts); },
          .gather = [&comm](std::span<const std::byte> bytes) { return gather_from(comm, bytes); }};
}

sparse::Mask example_mask(const io::PruningConfig& config, const sparse::ParameterSpec& spec,
                          int64_t kept) {
  const int64_t size = spec.shape.count();
  if (kept == 0 || kept == size) {
    return sparse::Mask(size, kept == size);
  }
  pruning::Settings settings = pruning::settings_of(config, 1);
  if (pruning::method_of(config).shape == nullptr) {
    settings.method = "random";
  }
  settings.scope = pruning::Scope::global;  // a parameter may then be left empty
  const pruning::Method& method = pruning::method_by_name(settings.method);
  if (method.sparsity == nullptr) {
    settings.sparsity = 1 - static_cast<double>(kept) / static_cast<double>(size);
  }
  const sparse::Index all = sparse::Index::full(size);
  std::vector<float> values;
  if (method.needs_values) {
    values = sparse::initial_values(spec, all, 1);
  }
  const std::vector<pruning::Candidate> candidates{{spec.name, spec.shape, &all, values}};
  return std::move(pruning::prune(candidates, settings).masks.front());
}

namespace {

/// At the start of a run: throws Failure if pruning will make single-element masks for a `prunable`
/// parameter whose storage cannot hold them.
void check_storages(const io::PruningConfig& config, const sparse::Store& store,
                    const std::vector<bool>& prunable, double sparsity) {
  if (pruning::masks_are_blocks(config) || pruning::method_of(config).from_file() ||
      sparsity <= 0) {
    return;
  }
  const int64_t edge = store.options().block.edge;
  const double fill = 1 - std::pow(sparsity, static_cast<double>(edge * edge));
  for (size_t p = 0; p < prunable.size(); ++p) {
    const sparse::Parameter& parameter = store.parameters()[p];
    check(
        !prunable[p] || !parameter.storage.whole_blocks,
        "storage \"block\" of \"{0}\" needs masks of whole blocks, which pruning.method = \"{1}\" "
        "does not make: whole {2}x{2} blocks would hold about {3:.1f} % instead of {4:.1f} %; use "
        "pruning.method = \"block\", or sparse.storage = \"sparse\" or \"auto\"",
        parameter.spec.name, config.method, edge, 100 * fill, 100 * (1 - sparsity));
  }
}

/// Flags over the store's parameters. The exclude patterns apply to the whole network.
std::vector<bool> prunable_in(const sparse::Store& store, const io::PruningConfig& config,
                              const StoreScope& scope) {
  if (scope.network.empty()) {
    return prunable_of(store, config);
  }
  const std::vector<bool> all = prunable_of(scope.network, config);
  std::vector<bool> mine;
  for (const size_t number : scope.numbers) {
    mine.push_back(all[number]);
  }
  return mine;
}

/// With batch norm, which the network shows by its averages, gradients are those of micro-batches.
ScoredSamples scored_samples(const io::Config& config, const sparse::Store& store,
                             const StoreScope& scope) {
  const bool batch_norm =
      std::ranges::any_of(scope.network.empty() ? specs_of(store) : scope.network,
                          [](const sparse::ParameterSpec& spec) { return spec.average; });
  return ScoredSamples::of(config.train.global_batch, batch_norm ? scope.micro_batch : 0,
                           batch_norm && config.train.sync_batch_norm ? scope.replicas : 1);
}

/// A selection together with the other stages, numbered over the whole network.
pruning::GlobalSelection global_selection_of(const StoreScope& scope,
                                             const std::vector<bool>& prunable) {
  std::vector<size_t> mine;
  for (const size_t number : scope.numbers) {
    if (prunable[number]) {
      mine.push_back(static_cast<size_t>(
          std::count(prunable.begin(), prunable.begin() + static_cast<int64_t>(number), true)));
    }
  }
  return make_global_selection(
      *scope.stages, static_cast<size_t>(std::ranges::count(prunable, true)), std::move(mine));
}

}  // namespace

Pruner::Pruner(const io::Config& config, sparse::Store& store, const StoreScope& scope)
    : config_(config.pruning),
      seed_(static_cast<uint64_t>(config.train.seed)),
      store_(store),
      scope_(scope),
      prunable_(prunable_in(store, config.pruning, scope)),
      global_selection_(scope.stages == nullptr
                            ? std::nullopt
                            : std::optional(global_selection_of(
                                  scope, prunable_of(scope.network, config.pruning)))),
      method_(pruning::method_of(config.pruning)),
      samples_(scored_samples(config, store, scope)),
      enabled_(config.pruning.prunes()) {
  if (enabled_) {
    schedule_ = pruning::pruning_schedule_of(config_);
    pruning::check_pruning_schedule(schedule_);
    if (schedule_.from_step < config.train.steps) {
      check_storages(config_, store_, prunable_, schedule_.final_sparsity);
    }
  }
  if (method_.waits) {
    history_.emplace(store.parameters().size());
  }
  if (method_.moving()) {
    moves_ = pruning::moves_of(config_, config.train.steps);
    pruning::check_moves(moves_);
  }
  if (method_.learning != nullptr) {
    pruning::check_learning_window(config_);
    window_ = pruning::learning_window_of(config_);
  }
}

bool Pruner::due(int64_t steps) const { return masks_change(steps) || projects_at(steps); }

bool Pruner::masks_change(int64_t steps) const {
  if (!enabled_) {
    return false;
  }
  if (method_.from_file()) {
    return steps == schedule_.from_step;
  }
  if (method_.waits) {
    return history_ && (steps == schedule_.to_step || pruning::check_at(config_, steps));
  }
  return pruning::prune_at(schedule_, steps) ||
         (method_.moving() && config_.sparsity > 0 && pruning::moves_at(moves_, steps));
}

/// Whether the arrays of a learning method change after `steps`, and masks do not.
bool Pruner::projects_at(int64_t steps) const {
  return method_.learning != nullptr && method_.learning->project != nullptr &&
         config_.sparsity > 0 && steps >= window_.from_step && steps < window_.to_step &&
         (steps - window_.from_step) % pruning::interval_of(config_) == 0;
}

double Pruner::target(int64_t steps) const {
  return enabled_ ? pruning::target_sparsity(schedule_, steps) : 0.0;
}

pruning::Settings Pruner::settings_at(int64_t steps) const {
  pruning::Settings settings = pruning::settings_of(config_, seed_);
  settings.global_selection = global_selection_ ? &*global_selection_ : nullptr;
  settings.sparsity = method_.waits ? schedule_.final_sparsity : target(steps);
  return settings;
}

/// Counts of the prunable elements and of the matrices that are pruned apart, for the target after
/// `steps`. Collective over the stages.
Pruner::Counts Pruner::counts_at(int64_t steps) const {
  std::array<int64_t, 5> sums{};
  auto& [size, kept, target, matrices, sparser] = sums;
  const double sparsity = settings_at(steps).sparsity;
  for (size_t p = 0; p < prunable_.size(); ++p) {
    if (!prunable_[p]) {
      continue;
    }
    const sparse::Parameter& parameter = store_.parameters()[p];
    const int64_t parts = method_.has_scores() ? parameter.spec.flow.parts : 1;
    const int64_t part = parameter.size() / parts;
    const int64_t wanted = pruning::kept_count(part, sparsity);
    const bool apart = parts > 1 && !parameter.full();
    const sparse::Mask mask = apart ? parameter.index.mask() : sparse::Mask();
    for (int64_t i = 0; i < parts; ++i) {
      const int64_t here = apart ? ones_in(mask, i * part, part) : parameter.kept() / parts;
      sparser += here < wanted ? 1 : 0;
    }
    size += parameter.size();
    kept += parameter.kept();
    target += parts * wanted;
    matrices += parts;
  }
  if (global_selection_) {
    global_selection_->sum(sums);
  }
  return {.size = size, .kept = kept, .target = target, .matrices = matrices, .sparser = sparser};
}

/// The present masks, if they come from elsewhere (--init) and have the target sparsity after
/// `steps` already: over all layers, though not in each as layer scope would make it; or before the
/// first step of masks that move. One element for each matrix is left to rounding. Collective over
/// the stages.
std::optional<pruning::Result> Pruner::masks_that_suffice(int64_t steps) const {
  const bool start = moves_from_here(steps);
  if (method_.shape != nullptr ||
      (pruning::scope_of(config_) == pruning::Scope::global && !start)) {
    return {};
  }
  const Counts counts = counts_at(steps);
  if (counts.kept == counts.size || counts.kept > counts.target + counts.matrices ||
      (counts.sparser == 0 && !start)) {
    return {};
  }
  pruning::Result result{.masks = store_.masks(), .warnings = {}};
  if (counts.kept + counts.matrices < counts.target) {
    result.warnings.push_back(
        fmt::format("{} of {} elements are kept already, fewer than the {} of sparsity {}; nothing "
                    "comes back",
                    counts.kept, counts.size, counts.target, settings_at(steps).sparsity));
  }
  return result;
}

/// The first masks of a run: those of --init if they have the sparsity; else random if masks move
/// from the start of a dense network; else by the method.
pruning::Result Pruner::first_masks(int64_t steps) {
  if (std::optional<pruning::Result> present = masks_that_suffice(steps)) {
    return std::move(*present);
  }
  const pruning::Settings settings = settings_at(steps);
  if (moves_from_here(steps) && counts_at(steps).is_dense()) {
    const auto distribution = pruning::distribution_by_name(config_.distribution);
    return among_all(store_, prunable_,
                     pruning::random_start(shapes_of(store_, prunable_), settings, distribution));
  }
  return compute_masks(store_, prunable_, settings, scope_);
}

/// Masks by scores of the kept elements, summed over the gradients of several batches.
pruning::Result Pruner::scored_masks(int64_t steps, parallel::Communicator& comm,
                                     const GradientPass& pass) {
  if (std::optional<pruning::Result> present = masks_that_suffice(steps)) {
    return std::move(*present);
  }
  const auto parameters = store_.parameters();
  std::vector<std::vector<float>> values(parameters.size());
  std::vector<std::vector<float>> scores(parameters.size());
  std::vector<pruning::Candidate> candidates;
  std::vector<size_t> candidate_of_parameter(parameters.size(), 0);
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (prunable_[p]) {
      values[p] = store_.values(parameters[p]);
      scores[p].assign(values[p].size(), 0.0F);
      candidate_of_parameter[p] = candidates.size();
      candidates.push_back(candidate_of(parameters[p], values[p]));
      candidates.back().scores = scores[p];
    }
  }
  SampleGradients gradients(store_, samples_, {.replicas = comm, .stages = scope_.stages}, pass);
  const auto score_batches = [&](const auto& score) {
    for (int64_t batch = 0; batch < config_.score_batches; ++batch) {
      gradients.for_each(batch, prunable_, sparse::Store::Probed::prunable,
                         [&](size_t p, std::span<const float> gradient) {
                           score(candidates[candidate_of_parameter[p]], gradient, scores[p]);
                         });
    }
  };
  score_batches(method_.score);
  if (method_.score_shifted != nullptr) {
    with_moved_values(values, scores, [&] { score_batches(method_.score_shifted); });
  }
  return among_all(store_, prunable_, pruning::prune(candidates, settings_at(steps)));
}

/// The norm of arrays by parameter, over the prunable ones of all stages: the same bits for any
/// number of stages.
double Pruner::norm(std::span<const std::vector<float>> arrays) const {
  std::vector<int64_t> squares;  // bits of doubles, by number of the candidate
  for (size_t p = 0; p < arrays.size(); ++p) {
    if (prunable_[p]) {
      double sum = 0;
      for (const float x : arrays[p]) {
        sum += static_cast<double>(x) * static_cast<double>(x);
      }
      squares.push_back(std::bit_cast<int64_t>(sum));
    }
  }
  if (global_selection_) {
    std::vector<int64_t> all(global_selection_->candidates, 0);
    for (size_t i = 0; i < squares.size(); ++i) {
      all[global_selection_->mine[i]] = squares[i];
    }
    global_selection_->sum(all);  // each has one term that is not zero
    squares = std::move(all);
  }
  double sum = 0;
  for (const int64_t square : squares) {
    sum += std::bit_cast<double>(square);
  }
  return std::sqrt(sum);
}

/// Runs `passes` at values moved along `direction`, and restores them bit for bit. Arrays are by
/// parameter.
void Pruner::with_moved_values(std::span<const std::vector<float>> values,
                               std::span<const std::vector<float>> direction,
                               const std::function<void()>& passes) {
  const double length = norm(direction);
  check(std::isfinite(length) && length > 0,
        "pruning.method = \"{}\": the norm of the gradient is {}; check the data, or prune by "
        "another method",
        config_.method, length);
  const auto factor = static_cast<float>(pruning::Method::kShift * norm(values) / length);
  const auto parameters = store_.parameters();
  std::vector<std::vector<float>> masters(parameters.size());
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (prunable_[p]) {
      if (store_.state(parameters[p]).separate_master) {
        masters[p] = store_.master(parameters[p]);
      }
      std::vector<float> moved = values[p];
      for (size_t i = 0; i < moved.size(); ++i) {
        moved[i] += factor * direction[p][i];
      }
      store_.set_values(parameters[p], moved);
    }
  }
  passes();
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (prunable_[p] && masters[p].empty()) {
      store_.set_values(parameters[p], values[p]);
    } else if (prunable_[p]) {
      store_.set_values(parameters[p], masters[p]);
      store_.set_common(parameters[p], values[p]);
    }
  }
}

/// Masks by the arrays of a learning method; or, between prunings, the present masks and projected
/// arrays. Collective when the store is sharded.
pruning::Result Pruner::learned_masks(int64_t steps) {
  const pruning::GradientLearning& learning = *method_.learning;
  const auto parameters = store_.parameters();
  const auto arrays_of = [&](const sparse::Parameter& parameter) {
    std::vector<std::vector<float>> arrays;
    for (int which = 0; which < learning.arrays; ++which) {
      arrays.push_back(store_.pruning_array(parameter, which));
    }
    return arrays;
  };
  std::vector<std::vector<float>> values;  // outlive the candidates' views
  std::vector<std::vector<float>> scores;
  std::vector<sparse::Parameter*> pruned;
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (prunable_[p]) {
      pruned.push_back(&parameters[p]);
      values.push_back(store_.values(parameters[p]));
      scores.emplace_back(values.back().size());
      learning.score(values.back(), arrays_of(parameters[p]), scores.back());
    }
  }
  std::vector<pruning::Candidate> candidates;
  for (size_t i = 0; i < pruned.size(); ++i) {
    candidates.push_back(candidate_of(*pruned[i], values[i]));
    candidates.back().scores = scores[i];
  }
  pruning::Settings settings = settings_at(steps);
  if (masks_change(steps)) {
    if (std::optional<pruning::Result> present = masks_that_suffice(steps)) {
      return std::move(*present);
    }
    return among_all(store_, prunable_, pruning::prune(candidates, settings));
  }
  settings.sparsity = schedule_.final_sparsity;
  const pruning::Result target = pruning::prune(candidates, settings);
  for (size_t i = 0; i < pruned.size(); ++i) {
    std::vector<std::vector<float>> arrays = arrays_of(*pruned[i]);
    learning.project(candidates[i], target.masks[i], steps == window_.from_step, arrays);
    for (int which = 0; which < learning.arrays; ++which) {
      store_.set_pruning_array(*pruned[i], which, arrays[static_cast<size_t>(which)]);
    }
  }
  return {.masks = store_.masks(), .warnings = {}};
}

optim::GradientHooks Pruner::gradient_hooks() {
  optim::GradientHooks hooks;
  if (method_.learning != nullptr && method_.learning->add != nullptr) {
    hooks.summed = [this](int64_t step, double scale) { learn(step, scale, GradientUse::add); };
  }
  if (method_.learning != nullptr && method_.learning->observe != nullptr) {
    hooks.accepted = [this](int64_t step, double scale) {
      learn(step, scale, GradientUse::observe);
    };
  }
  return hooks;
}

/// Step `step` + 1, whose gradient is too large by `scale`. Element by element, so the same bits
/// for any number of threads and shards.
void Pruner::learn(int64_t step, double scale, GradientUse use) {
  if (config_.sparsity == 0 || step < window_.from_step || step >= window_.to_step) {
    return;
  }
  for (size_t p = 0; p < prunable_.size(); ++p) {
    const sparse::OptimizerState state = store_.state(store_.parameters()[p]);
    const auto count = static_cast<size_t>(state.value.count());
    if (!prunable_[p] || count == 0) {
      continue;
    }
    const std::vector<float> values = numbers_of(store_.stream(), state.value, 1);
    std::vector<float> gradient = numbers_of(store_.stream(), state.gradient, 1 / scale);
    const bool two = method_.learning->arrays == 2;
    const Mirror first(store_.stream(), state.pruning1);
    const Mirror second(store_.stream(), two ? state.pruning2 : state.pruning1);
    const std::span<float> array1 = first.read().host().span<float>();
    const std::span<float> array2 = second.read().host().span<float>();
    constexpr size_t kTogether = size_t{1} << 14U;
    const int threads = store_.stream().threads();
#pragma omp parallel for num_threads(threads) if (threads > 1 && count > kTogether)
    for (size_t begin = 0; begin < count; begin += kTogether) {
      const auto part = [&](auto span) {
        return span.subspan(begin, std::min(kTogether, count - begin));
      };
      const pruning::GradientStep learned{
          .values = part(std::span(values)),
          .gradient = part(std::span(gradient)),
          .arrays = {part(array1), two ? part(array2) : std::span<float>()}};
      use == GradientUse::add ? method_.learning->add(config_, learned)
                              : method_.learning->observe(learned);
    }
    if (use == GradientUse::add) {
      write_numbers(store_.stream(), gradient, scale, state.gradient);
    } else {
      first.write();
      if (two) {
        second.write();
      }
    }
  }
}

/// Kept elements of each parameter after `steps`: fewer than now while pruning is gradual.
std::vector<int64_t> Pruner::kept_after(int64_t steps, std::vector<std::string>& warnings) {
  std::vector<int64_t> kept;
  if (config_.gradual()) {
    pruning::Result fewer = first_masks(steps);
    warnings = std::move(fewer.warnings);
    std::ranges::transform(fewer.masks, std::back_inserter(kept), &sparse::Mask::kept);
  } else {
    std::ranges::transform(store_.parameters(), std::back_inserter(kept), &sparse::Parameter::kept);
  }
  return kept;
}

/// Drop and grow in each layer. Does nothing in layers without pruned elements.
pruning::Result Pruner::moved_masks(int64_t steps, parallel::Communicator& comm,
                                    const GradientPass& pass) {
  pruning::Result result{.masks = store_.masks(), .warnings = {}};
  const std::vector<int64_t> kept = kept_after(steps, result.warnings);
  const double fraction = pruning::drop_fraction(moves_, steps);
  std::vector<int64_t> counts(kept.size(), 0);
  for (size_t p = 0; p < kept.size(); ++p) {
    const sparse::Parameter& parameter = store_.parameters()[p];
    if (!prunable_[p] || (parameter.full() && kept[p] == parameter.size())) {
      continue;
    }
    counts[p] = parameter.full() ? 0 : pruning::drop_count(kept[p], fraction);
    const std::vector<float> values = store_.values(parameter);
    result.masks[p] = pruning::drop_to(candidate_of(parameter, values), kept[p] - counts[p]);
  }
  const auto growth_of = [&](size_t p) -> pruning::Growth {
    const sparse::ParameterSpec& spec = store_.parameters()[p].spec;
    return {.name = spec.name,
            .count = counts[p],
            .seed = seed_,
            .step = steps,
            .columns = spec.shape.cols()};
  };
  if (method_.needs_gradients) {
    std::vector<bool> wanted;
    for (const int64_t count : counts) {
      wanted.push_back(count > 0);
    }
    SampleGradients(store_, samples_, {.replicas = comm, .stages = scope_.stages}, pass)
        .for_each(0, wanted, sparse::Store::Probed::pruned,
                  [&](size_t p, std::span<const float> gradient) {
                    pruning::Growth growth = growth_of(p);
                    growth.gradient = gradient;
                    method_.grow(growth, result.masks[p]);
                  });
  } else {
    for (size_t p = 0; p < counts.size(); ++p) {
      method_.grow(growth_of(p), result.masks[p]);
    }
  }
  return result;
}

pruning::Result Pruner::masks_for(int64_t steps, parallel::Communicator& comm,
                                  const GradientPass& pass) {
  if (method_.from_file()) {
    return {.masks = masks_from_file(config_.file, store_), .warnings = {}};
  }
  if (method_.score != nullptr) {
    return scored_masks(steps, comm, pass);
  }
  if (method_.learning != nullptr) {
    return learned_masks(steps);
  }
  const bool moves = method_.moving() && pruning::moves_at(moves_, steps);
  return moves ? moved_masks(steps, comm, pass) : first_masks(steps);
}

Change Pruner::change(int64_t steps, parallel::Communicator& comm, const GradientPass& pass) {
  pruning::Result result = masks_for(steps, comm, pass);
  Change change{.masks = masks_change(steps), .warnings = std::move(result.warnings)};
  if (!change.masks) {
    return change;
  }
  if (method_.waits && !stable(steps, result, change)) {
    compare_masks(comm, [&](size_t p) { return result.masks[p].digest(); });
    return change;
  }
  for (size_t p = 0; p < result.masks.size(); ++p) {
    const sparse::Parameter& parameter = store_.parameters()[p];
    change.grown += parameter.full() ? 0 : grown(parameter.index.mask(), result.masks[p]);
  }
  compare_masks(comm, [&](size_t p) { return result.masks[p].digest(); });
  store_.set_masks(result.masks);
  return change;
}

bool Pruner::stable(int64_t steps, const pruning::Result& result, Change& change) {
  if (history_->full()) {
    pruning::MaskHistory::Counts counts = history_->compare(result.masks);
    if (global_selection_) {
      global_selection_->sum(counts.different);
      global_selection_->sum(counts.sizes);
    }
    change.distance = pruning::MaskHistory::largest_distance(counts);
  }
  if (steps >= schedule_.to_step || (change.distance && *change.distance < config_.distance)) {
    history_.reset();
    return true;
  }
  change.masks = false;
  change.warnings.clear();  // of masks that are not used
  history_->add(result.masks, prunable_);
  return false;
}

void Pruner::resume(int64_t steps, const io::CheckpointReader& reader) {
  if (!history_) {
    return;
  }
  const int64_t checks = pruning::checks_before(config_, steps);
  const std::string kind(io::kMaskHistoryKind);
  const auto saved = std::ranges::any_of(
      reader.names(), [&](const std::string& name) { return reader.has_optimizer(name, kind); });
  if (steps > schedule_.to_step || (checks > 0 && !saved)) {
    history_.reset();  // pruned already
    return;
  }
  history_->set_checks(checks);
  for (size_t p = 0; p < prunable_.size() && checks > 0; ++p) {
    if (prunable_[p]) {
      const sparse::Parameter& parameter = store_.parameters()[p];
      std::vector<float> numbers(static_cast<size_t>(parameter.kept()));
      reader.optimizer(parameter.spec.name, kind,
                       Tensor(numbers.data(), DType::fp32, Shape{parameter.kept()}));
      history_->restore(p, parameter.index.mask(), numbers);
    }
  }
}

void Pruner::compare(parallel::Communicator& comm) const {
  compare_masks(comm, [&](size_t p) { return store_.parameters()[p].index.mask().digest(); });
}

void Pruner::compare_masks(parallel::Communicator& comm,
                           const std::function<uint64_t(size_t)>& digest) const {
  std::vector<std::string> names;
  std::vector<uint64_t> digests;
  for (size_t p = 0; p < prunable_.size(); ++p) {
    names.push_back(store_.parameters()[p].spec.name + " (mask)");
    digests.push_back(digest(p));
  }
  parallel::compare_digests(comm, names, digests);
}

Sparsity Pruner::sparsity() const {
  Sparsity sum;
  for (size_t p = 0; p < prunable_.size(); ++p) {
    if (prunable_[p] && !store_.parameters()[p].spec.borrowed) {
      sum.prunable += store_.parameters()[p].size();
      sum.prunable_kept += store_.parameters()[p].kept();
    }
  }
  return sum;
}

}  // namespace espalier::train
