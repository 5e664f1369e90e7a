#pragma once
// Simulates a schedule: the time of each action, given the times of stages and links. A rank
// computes one action at a time; messages move concurrently.
// Exact for that model. Cost: the number of actions.
//
//   begin of an action = max(end of the rank's previous action, arrival of its input)
#include <limits>

#include "parallel/pipeline/schedule/schedule.h"

namespace espalier::parallel {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

/// Times of one micro-batch, in seconds (or any unit).
struct StageTimes {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double backward() const { return backward_input + backward_weight; }
};

struct Costs {
  std::vector<StageTimes> stages;  ///< [S]
  double latency = 0;              ///< of a message
  double transfer = 0;             ///< time for which a message occupies its link: bytes /
                                   ///< bandwidth
  /// A `paired` forward and backward run as one action, for the sum of both times, and end
  /// together.
  bool fuse_pairs = false;

  /// Duration of a compute action; 0 for others.
  double of(const Action& action) const;

  static Costs even(int stages, const StageTimes& times) {
    return {.stages = std::vector<StageTimes>(static_cast<size_t>(stages), times)};
  }
};

/// Messages in transit between ranks. On a link (from, to) they move one after the other:
/// arrival = max(sent, link free) + transfer + latency.
class Links {
 public:
  /// `costs` must outlive it.
  Links(int ranks, int stages, int micro_batches, const Costs& costs);

  /// The message that `action` sends at `now`; returns its arrival.
  double send(const Action& action, int from, int to, double now);
  /// Arrival time of the message that `action` receives; kNever: not sent yet.
  double arrival(const Action& action);

 private:
  double& at(std::vector<double>& of, int stage, int micro_batch) const;

  const Costs& costs_;
  size_t ranks_, micro_batches_;
  std::vector<double> free_;                   ///< [from][to] time until which the link is occupied
  std::vector<double> activation_, gradient_;  ///< [stage][micro-batch] arrival
};

struct TimedAction {
  Action action;
  double begin = 0, end = 0;
};

/// The compute actions of all ranks with their times.
struct Timeline {
  std::vector<std::vector<TimedAction>> ranks;

  double makespan() const;
  double busy(size_t rank) const;
  /// Seconds of the makespan in which the rank computes nothing.
  double idle(size_t rank) const { return makespan() - busy(rank); }
  /// Mean of idle over the ranks, as a share of the makespan; 0 without work.
  double idle_share() const;
  /// Seconds without work between the rank's own first and last action.
  double bubble(size_t rank) const;
};

/// Throws Failure when the schedule does not finish (check.h reports why).
Timeline simulate(const Schedule& schedule, const Costs& costs);

}  // namespace espalier::parallel
