#pragma once
// Simulates a schedule: the time of each action, given the times of stages and links (costs.h).
// Exact for that model. Cost: the number of actions.
//
//   begin of an action = max(end of the rank's previous action, arrival of its input)
#include "parallel/pipeline/schedule/costs.h"

namespace espalier::parallel {

struct TimedAction {
  Action action;
  double begin = 0, end = 0;
};

/// The compute actions of all ranks with their times.
struct Timeline {
  std::vector<std::vector<TimedAction>> ranks;

  double makespan() const;
  double busy(size_t rank) const;
  /// Seconds without work, over the makespan.
  double idle(size_t rank) const { return makespan() - busy(rank); }
  /// Seconds without work between the rank's own first and last action.
  double bubble(size_t rank) const;
  double most_idle() const;
  double largest_bubble() const;
};

/// Throws Failure when the schedule does not finish (check.h reports why).
Timeline simulate(const Schedule& schedule, const Costs& costs);

}  // namespace espalier::parallel
