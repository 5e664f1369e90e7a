#pragma once
// The output of `espalier plan`: layouts as text, as the object of --json (docs/planner.md), and as
// the step that the page draws.
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/planner/checkpoints.h"
#include "src/planner/measured_run.h"
#include "src/planner/plans.h"
#include "src/planner/trial.h"
#include "src/report/plan_page.h"

namespace espalier::cli {

class PlanOutput {
 public:
  /// All arguments must outlive it. `assumed`: about the run's data; empty: nothing was assumed.
  PlanOutput(const planner::PlannedRun& run, const planner::Machine& machine, std::string assumed);

  /// First of all. Throws Failure if there is no layout.
  void plan(std::span<const int> ranks, const std::optional<planner::SearchOptions>& search);
  /// The configs of the fastest `most` layouts, after `plan` for one number of ranks.
  std::vector<io::Config> configs_of_best(size_t most) const;
  /// Adds the measured steps of the layouts of `configs_of_best`, and sorts these layouts by them.
  void add_measured(std::span<const planner::Tried> tried);
  void compare_with(const planner::MeasuredRun& measured);
  /// The curves of this run and of the same run without pruning; none for one number of ranks.
  void add_scaling(std::span<const int> ranks, const std::optional<planner::SearchOptions>& search);

  /// The fastest layout that fits; if none fits, the fastest.
  const planner::StepPrediction& best() const { return plans_.found[best_].step; }
  /// Whether any layout fits the devices.
  bool best_fits() const { return planner::fits(best(), machine_, run_.tensor); }
  nlohmann::ordered_json json() const;
  std::string text() const;
  report::PlannedStep step_of_best() const;

 private:
  /// Planned at the first call.
  const std::vector<planner::PlannedRank>& ranks_of_best() const;
  std::optional<planner::CheckpointPrediction> checkpoints() const;
  nlohmann::ordered_json best_json() const;
  /// Facts and hints; and reasons why a layout cannot run, or not on these devices.
  std::vector<std::string> notes() const;
  std::vector<std::string> warnings() const;
  /// The keys in which the best layout differs from the run's config, as "section.key=VALUE".
  std::vector<std::string> settings_of_best() const;
  /// The best layout over so many ranks, of those that fit, if any: the fastest, by measured times
  /// if there are some.
  const planner::PlannedLayout& best_over(int ranks) const;
  /// How a layout compares with the best of its ranks.
  std::string beside(const planner::PlannedLayout& layout) const;
  std::vector<std::string> row_of(const planner::PlannedLayout& layout, bool measured) const;

  const planner::PlannedRun& run_;
  const planner::Machine& machine_;
  std::string assumed_;
  std::vector<std::string> failures_;  ///< of layouts that were tried
  planner::Plans plans_;
  size_t best_ = 0;
  mutable std::vector<planner::PlannedRank> ranks_of_best_;
  nlohmann::ordered_json scaling_ = nlohmann::ordered_json::array();
  nlohmann::ordered_json comparison_;  ///< null: none
};

}  // namespace espalier::cli
