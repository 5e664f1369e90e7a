// Methods whose masks move: first masks, which may come gradually, then drop and grow in each
// layer.
#include <algorithm>

#include "pruning/drop_grow.h"
#include "pruning/kinds/kinds.h"
#include "pruning/kinds/scheduled.h"
#include "pruning/plan.h"
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
    return prune_at(schedule_, steps) || (sparsity_of(config()) > 0 && moves_at(moves_, steps));
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
      if (const int64_t edge = shape_of(config()).height; edge > 0) {
        for (size_t p = 0; p < result.masks.size(); ++p) {
          if (weights_.prunable[p]) {
            check_blocks(candidate_of(weights_.store.parameters()[p], {}), result.masks[p], edge);
          }
        }
      }
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

  /// Does nothing in layers without pruned elements.
  Proposal moved_masks(int64_t steps, const Gradients& gradients) {
    sparse::Store& store = weights_.store;
    Proposal
        proposal;  // the masks before the move: fewer elements than now while pruning is gradual
    if (config().gradual()) {
      Proposal fewer = first_masks(steps);
      proposal = {.masks = std::move(fewer.masks), .warnings = std::move(fewer.warnings)};
    } else {
      proposal.masks = store.masks();
    }
    const sparse::IndexShape shape = shape_of(config());
    const double fraction = drop_fraction(moves_, steps);
    std::vector<Dropped> dropped(proposal.masks.size());
    std::vector<bool> wanted(proposal.masks.size());
    for (size_t p = 0; p < dropped.size(); ++p) {
      const sparse::Parameter& parameter = store.parameters()[p];
      sparse::Mask& mask = proposal.masks[p];
      if (!weights_.prunable[p] || (parameter.full() && mask.kept() == parameter.size())) {
        continue;
      }
      const std::vector<float> values = store.values(parameter);
      dropped[p] =
          drop(candidate_of(parameter, values), mask, parameter.full() ? 0 : fraction, shape);
      wanted[p] = dropped[p].grows();
      mask = std::move(dropped[p].mask);
    }
    const auto grow_one = [&](size_t p, std::span<const float> gradient) {
      dropped[p].mask = std::move(proposal.masks[p]);
      grow(kind_, {.seed = settings_.seed, .step = steps, .gradient = gradient},
           candidate_of(store.parameters()[p], {}), shape, dropped[p]);
      proposal.masks[p] = std::move(dropped[p].mask);
    };
    if (kind_.by_gradient) {
      gradients(0, wanted, sparse::Store::Probed::pruned, grow_one);
      return proposal;
    }
    for (size_t p = 0; p < wanted.size(); ++p) {
      if (wanted[p]) {
        grow_one(p, {});
      }
    }
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
