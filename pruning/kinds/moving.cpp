// Methods whose masks move: first masks, which may come gradually, then drop and grow in each
// layer.
#include <algorithm>

#include "pruning/drop_grow.h"
#include "pruning/kinds/kinds.h"
#include "pruning/kinds/scheduled.h"
#include "src/core/error.h"

namespace espalier::pruning {
namespace {

class Moves final : public Scheduled {
 public:
  Moves(const Moving& kind, RunSettings settings, const Weights& weights)
      : Scheduled(std::move(settings), weights),
        kind_(kind),
        moves_(moves_of(config(), settings_.steps)) {
    check_moves(moves_);
  }

  bool due(int64_t steps) const override {
    return prune_at(schedule_, steps) || (config().sparsity > 0 && moves_at(moves_, steps));
  }

  Proposal propose(int64_t steps, const Gradients& gradients) override {
    return moves_at(moves_, steps) ? moved_masks(steps, gradients) : first_masks(steps);
  }

 private:
  /// Before the first step: the masks of --init if they have the sparsity, else random ones for a
  /// dense network. Later, and for a network that is sparse otherwise: those of Method::run.
  Proposal first_masks(int64_t steps) {
    const bool start = steps == 0;
    if (std::optional<Proposal> present = masks_that_suffice(steps, start)) {
      return std::move(*present);
    }
    if (!start || !counts_at(steps).is_dense()) {
      Result result = prune(weights_, settings_at(steps));
      return {.masks = std::move(result.masks), .warnings = std::move(result.warnings)};
    }
    std::vector<Candidate> candidates;
    for (size_t p = 0; p < weights_.prunable.size(); ++p) {
      if (weights_.prunable[p]) {
        candidates.push_back(candidate_of(weights_.store.parameters()[p], {}));
      }
    }
    Result result =
        random_start(candidates, settings_at(steps), distribution_by_name(config().distribution));
    return {.masks = among_all(weights_, std::move(result.masks)),
            .warnings = std::move(result.warnings)};
  }

  /// Kept elements of each parameter after `steps`: fewer than now while pruning is gradual.
  std::vector<int64_t> kept_after(int64_t steps, std::vector<std::string>& warnings) {
    std::vector<int64_t> kept;
    if (config().gradual()) {
      Proposal fewer = first_masks(steps);
      warnings = std::move(fewer.warnings);
      std::ranges::transform(fewer.masks, std::back_inserter(kept), &sparse::Mask::kept);
    } else {
      std::ranges::transform(weights_.store.parameters(), std::back_inserter(kept),
                             &sparse::Parameter::kept);
    }
    return kept;
  }

  /// Does nothing in layers without pruned elements.
  Proposal moved_masks(int64_t steps, const Gradients& gradients) {
    sparse::Store& store = weights_.store;
    Proposal proposal{.masks = store.masks()};
    const std::vector<int64_t> kept = kept_after(steps, proposal.warnings);
    const double fraction = drop_fraction(moves_, steps);
    std::vector<int64_t> counts(kept.size(), 0);
    for (size_t p = 0; p < kept.size(); ++p) {
      const sparse::Parameter& parameter = store.parameters()[p];
      if (!weights_.prunable[p] || (parameter.full() && kept[p] == parameter.size())) {
        continue;
      }
      counts[p] = parameter.full() ? 0 : drop_count(kept[p], fraction);
      const std::vector<float> values = store.values(parameter);
      proposal.masks[p] = drop_to(candidate_of(parameter, values), kept[p] - counts[p]);
    }
    const auto growth_of = [&](size_t p) -> Growth {
      const sparse::ParameterSpec& spec = store.parameters()[p].spec;
      return {.name = spec.name,
              .count = counts[p],
              .seed = settings_.seed,
              .step = steps,
              .columns = spec.shape.cols()};
    };
    if (!kind_.by_gradient) {
      for (size_t p = 0; p < counts.size(); ++p) {
        kind_.grow(growth_of(p), proposal.masks[p]);
      }
      return proposal;
    }
    std::vector<bool> wanted;
    for (const int64_t count : counts) {
      wanted.push_back(count > 0);
    }
    gradients(0, wanted, sparse::Store::Probed::pruned,
              [&](size_t p, std::span<const float> gradient) {
                Growth growth = growth_of(p);
                growth.gradient = gradient;
                kind_.grow(growth, proposal.masks[p]);
              });
    return proposal;
  }

  const Moving& kind_;
  MaskMoveSchedule moves_;
};

}  // namespace

std::unique_ptr<Work> start(const Moving& kind, RunSettings settings, const Weights& weights) {
  return std::make_unique<Moves>(kind, std::move(settings), weights);
}

void validate(const Moving& /*kind*/, const io::PruningConfig& config, const RunFacts& run) {
  const bool given = config.to_step >= 0;
  const int64_t from = std::max({config.at_step, config.from_step, int64_t{0}});
  check(config.last_move(run.steps) > from,
        "the masks of pruning.method = \"{}\" would move from step {} to step {}{}, which is not "
        "later; set a later pruning.to_step",
        config.method, from, config.last_move(run.steps),
        given ? "" : fmt::format(", 75 % of train.steps = {}", run.steps));
}

bool reads(const Moving& /*kind*/, const io::PruningConfig& config, std::string_view key) {
  return key == "every" || key == "drop_fraction" || (key == "distribution" && config.at_step < 0);
}

}  // namespace espalier::pruning
