#pragma once
// The base of all work in runs: a schedule of prunings to a target sparsity, and masks by
// Method::run.
#include <optional>

#include "pruning/registry.h"
#include "pruning/schedule.h"
#include "pruning/work.h"

namespace espalier::pruning {

class Scheduled : public Work {
 public:
  Scheduled(RunSettings settings, const Weights& weights);

  bool due(int64_t steps) const override { return prune_at(schedule_, steps); }
  Proposal propose(int64_t steps, const Gradients& /*gradients*/) override {
    return masks_by_run(steps);
  }
  double target(int64_t steps) const override { return target_sparsity(schedule_, steps); }

 protected:
  /// Settings of Method::run after `steps`.
  virtual Settings settings_at(int64_t steps) const;
  /// Elements and matrices of all ranks that hold different parameters.
  struct Counts {
    int64_t size, kept, target;  ///< elements
    int64_t matrices;            ///< parts count apart (Candidate)
    int64_t sparser;             ///< matrices with fewer kept elements than the target

    bool is_dense() const { return kept == size; }
  };
  /// For the target after `steps`. Collective.
  Counts counts_at(int64_t steps) const;
  /// The present masks, if they come from elsewhere (--init) and have the target sparsity after
  /// `steps` already: over all layers, though not in each as layer scope would make it; with
  /// `anyway` also in global scope and layer by layer. One element for each matrix is left to
  /// rounding. Collective.
  std::optional<Proposal> masks_that_suffice(int64_t steps, bool anyway = false) const;
  /// Those, or the masks of Method::run by values.
  Proposal masks_by_run(int64_t steps);
  /// The masks of Method::run for candidates of all prunable parameters.
  Proposal masks_of(std::span<const Candidate> candidates, const Settings& settings) const;

  const io::PruningConfig& config() const { return settings_.config; }
  const Method& method() const { return method_of(settings_.config); }

  RunSettings settings_;
  Weights weights_;
  PruningSchedule schedule_;
};

/// The candidate of a parameter. `values`: of its kept elements; empty: not needed.
Candidate candidate_of(const sparse::Parameter& parameter, std::span<const float> values);

/// Masks of all parameters: `chosen` for the prunable ones, the current masks for the others.
std::vector<sparse::Mask> among_all(const Weights& weights, std::vector<sparse::Mask> chosen);

}  // namespace espalier::pruning
