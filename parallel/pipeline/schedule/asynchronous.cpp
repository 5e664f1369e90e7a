// Asynchronous 1F1B without flushes: each stage updates after each `every` backwards. The
// micro-batches are those between two flushes of the pipeline. Source: Narayanan et al., SOSP 2019.
//
// One rank with several chunks runs the actions of as many ranks one at a time, in an order that
// these ranks could have. So every stage sees the same weights and delays (a delay injector).
#include <algorithm>

#include "parallel/pipeline/schedule/builders.h"

namespace espalier::parallel {
namespace {

/// 1F1B over `stages` stages, serialised for one rank: in turn, from the last stage to the first,
/// each stage runs its next action if its input has arrived.
std::vector<Action> serialised(int stages, int micro_batches) {
  struct Progress {
    std::vector<Action> program;
    size_t next = 0;
    int forwards = 0, backwards = 0;
  };
  std::vector<Progress> all;
  for (int stage = 0; stage < stages; ++stage) {
    const int warm = std::min(stages - 1 - stage, micro_batches);
    all.push_back({.program = forwards_first(stage, micro_batches, warm)});
  }
  std::vector<Action> order;
  while (order.size() < all.size() * all.front().program.size()) {
    for (int stage = stages; stage-- > 0;) {
      Progress& mine = all[static_cast<size_t>(stage)];
      if (mine.next == mine.program.size()) {
        continue;
      }
      const Action& action = mine.program[mine.next];
      const bool forward = action.kind == ActionKind::forward;
      const int from = stage + (forward ? -1 : 1);
      if (from >= 0 && from < stages) {
        const Progress& other = all[static_cast<size_t>(from)];
        if ((forward ? other.forwards : other.backwards) <= action.micro_batch) {
          continue;
        }
      }
      order.push_back(action);
      ++mine.next;
      ++(forward ? mine.forwards : mine.backwards);
    }
  }
  return order;
}

Schedule asynchronous(const ScheduleShape& shape) {
  Schedule schedule = one_stage_a_rank("async", shape);
  schedule.synchronous = false;
  schedule.micro_batches_per_update = shape.micro_batches_per_update;
  if (shape.chunks == 1) {
    return complete(schedule, [&](int rank) {
      return forwards_first(rank, shape.micro_batches, warm_up(schedule, rank));
    });
  }
  require(shape.ranks == 1, "chunks stand for the ranks of a pipeline", shape.ranks, shape.chunks);
  schedule.chunks = shape.chunks;
  schedule.programs.push_back(serialised(shape.chunks, shape.micro_batches));
  return complete(std::move(schedule));
}

}  // namespace

extern const ScheduleEntry kAsynchronous{
    .name = "async",
    .help = "1f1b without drains: each stage updates by itself",
    .build = asynchronous,
    .synchronous = false,
};

}  // namespace espalier::parallel
