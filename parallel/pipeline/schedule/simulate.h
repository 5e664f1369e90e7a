#pragma once
// When each action of a schedule would happen, given the times of stages and links. Exact for the
// model: a rank computes one thing at a time, messages move beside it, one after the other on a
// link. Cost: the number of actions (message-driven: times log).
//
//   rank k:    begin = max(its last end, arrival of what the action needs)
//   message:   arrival = max(made, link free) + transfer + latency
#include <span>
#include <utility>

#include "parallel/pipeline/schedule/schedule.h"

namespace espalier::parallel {

/// Seconds (or any unit) of one micro-batch.
struct StageTimes {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double backward() const { return backward_input + backward_weight; }
};

struct Costs {
  std::vector<StageTimes> stages;  ///< [S]
  double latency = 0;              ///< of a message
  double transfer = 0;             ///< for which a message occupies its link: bytes / bandwidth
  /// Forward and backward that are `paired` run as one, for as long as both, and end together.
  bool fuse_pairs = false;

  static Costs even(int stages, const StageTimes& times) {
    return {.stages = std::vector<StageTimes>(static_cast<size_t>(stages), times)};
  }
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
  /// Without work while any rank still has some.
  double idle(size_t rank) const { return makespan() - busy(rank); }
  /// Without work between its own first and last action.
  double bubble(size_t rank) const;
  double most_idle() const;
  double largest_bubble() const;
};

/// Throws Failure when the schedule does not come to its end (check.h says why).
Timeline simulate(const Schedule& schedule, const Costs& costs);

/// What a rank without a program does next: whatever has arrived (AxoNN, Singh & Bhatele, IPDPS
/// 2022, algorithm 2). Rank 0 has at most `in_flight` micro-batches under way.
struct MessageDriven {
  int ranks = 1;
  int micro_batches = 1;
  int in_flight = 1;
  enum class Order : uint8_t { backward_first, arrival } order = Order::backward_first;
};

/// The order that results is a schedule like any other, for these times.
std::pair<Schedule, Timeline> simulate(const MessageDriven& policy, const Costs& costs);

/// The smallest limit from p to m whose makespan is within 1 % of the best.
int best_in_flight(int ranks, int micro_batches, const Costs& costs);

}  // namespace espalier::parallel
