#pragma once
// Message-driven scheduling: a rank has no program and runs an action as soon as its message has
// arrived. Rank 0 has at most `in_flight` micro-batches in flight. Source: AxoNN (Singh & Bhatele,
// IPDPS 2022), algorithm 2.
#include <utility>

#include "parallel/pipeline/schedule/simulate.h"

namespace espalier::parallel {

struct MessageDriven {
  int ranks = 1;
  int micro_batches = 1;
  int in_flight = 1;
};

/// The schedule that results from these times. Cost: n log n for n actions.
std::pair<Schedule, Timeline> simulate(const MessageDriven& policy, const Costs& costs);

/// The smallest limit from p to m whose makespan is within 1 % of the best.
int best_in_flight(int ranks, int micro_batches, const Costs& costs);

}  // namespace espalier::parallel
