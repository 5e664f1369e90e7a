#include "src/train/masks/pruner.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "io/checkpoint/checkpoint.h"
#include "parallel/transport/collectives.h"
#include "parallel/transport/digest.h"
#include "pruning/plan.h"
#include "pruning/regrowth.h"
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

/// Number of elements kept in `now` but not in `before`.
int64_t grown(const sparse::Mask& before, const sparse::Mask& now) {
  int64_t count = 0;
  for (size_t w = 0; w < now.words().size(); ++w) {
    count += std::popcount(now.words()[w] & ~before.words()[w]);
  }
  return count;
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

pruning::GlobalSelection make_global_selection(parallel::Communicator& comm, size_t candidates,
                                               std::vector<size_t> mine) {
  return {.candidates = candidates,
          .mine = std::move(mine),
          .sum = [&comm](std::span<int64_t> counts) { sum_over(comm, counts); },
          .gather = [&comm](std::span<const std::byte> bytes) { return gather_from(comm, bytes); }};
}

namespace {

/// At the start of a run: throws Failure if pruning will make single-element masks for a `prunable`
/// parameter whose storage cannot hold them.
void check_storages(const io::PruningConfig& config, const sparse::Store& store,
                    const std::vector<bool>& prunable, double sparsity) {
  if (!pruning::makes_single_elements(config) || sparsity <= 0) {
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
    : store_(store),
      stages_(scope.stages),
      prunable_(prunable_in(store, config.pruning, scope)),
      global_selection_(scope.stages == nullptr
                            ? std::nullopt
                            : std::optional(global_selection_of(
                                  scope, prunable_of(scope.network, config.pruning)))),
      samples_(scored_samples(config, store, scope)),
      work_(pruning::start(
          {.config = config.pruning,
           .seed = static_cast<uint64_t>(config.train.seed),
           .steps = config.train.steps,
           .masks_of_file = [this,
                             file = config.pruning.file] { return masks_from_file(file, store_); }},
          {.store = store,
           .prunable = prunable_,
           .stages = global_selection_ ? &*global_selection_ : nullptr})) {
  if (work_ && pruning::pruning_schedule_of(config.pruning).from_step < config.train.steps) {
    check_storages(
        config.pruning, store_, prunable_,
        work_->target(pruning::last_step_before_regrowth(config.pruning, config.train.steps)));
  }
}

Change Pruner::change(int64_t steps, parallel::Communicator& comm, const GradientPass& pass) {
  SampleGradients gradients(store_, samples_, {.replicas = comm, .stages = stages_}, pass);
  pruning::Proposal proposal = work_->propose(
      steps,
      [&](int64_t batch, const std::vector<bool>& wanted, sparse::Store::Probed probed,
          const pruning::UseGradient& use) { gradients.for_each(batch, wanted, probed, use); });
  if (!proposal.masks.empty()) {
    compare_masks(comm, [&](size_t p) { return proposal.masks[p].digest(); });
  }
  Change change{.masks = proposal.applies, .notes = {}, .distance = proposal.distance};
  if (!change.masks) {
    return change;
  }
  for (const std::string& warning : proposal.warnings) {
    change.notes.push_back("pruning: " + warning);
  }
  if (!proposal.note.empty()) {
    change.notes.push_back(proposal.note);
  }
  for (size_t p = 0; p < proposal.masks.size(); ++p) {
    const sparse::Parameter& parameter = store_.parameters()[p];
    change.grown += parameter.full() ? 0 : grown(parameter.index.mask(), proposal.masks[p]);
  }
  store_.set_masks(proposal.masks);
  return change;
}

optim::GradientHooks Pruner::gradient_hooks() {
  pruning::GradientWork work = work_ ? work_->gradient_work() : pruning::GradientWork();
  return {.summed = std::move(work.add), .accepted = std::move(work.observe)};
}

void Pruner::resume(int64_t steps, const io::CheckpointReader& reader) {
  const std::string kind(io::kMaskHistoryKind);
  const auto saved = std::ranges::any_of(
      reader.names(), [&](const std::string& name) { return reader.has_optimizer(name, kind); });
  if (!work_ || !work_->resume(steps, saved)) {
    return;
  }
  for (size_t p = 0; p < prunable_.size(); ++p) {
    if (prunable_[p]) {
      const sparse::Parameter& parameter = store_.parameters()[p];
      std::vector<float> numbers(static_cast<size_t>(parameter.kept()));
      reader.optimizer(parameter.spec.name, kind,
                       Tensor(numbers.data(), DType::fp32, Shape{parameter.kept()}));
      work_->history()->restore(p, parameter.index.mask(), numbers);
    }
  }
}

void Pruner::compare(parallel::Communicator& comm) const {
  compare_masks(comm, [&](size_t p) { return store_.parameters()[p].index.mask().digest(); });
}

void Pruner::compare_masks(parallel::Communicator& comm, const Digest& digest) const {
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
