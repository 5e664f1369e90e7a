// GPipe, 1F1B and asynchronous 1F1B: one stage a rank, whole backwards.
//
// All three: rank k runs `warm` forwards, then pairs of forward and backward, then the other
// backwards; m for GPipe, p - 1 - k for 1F1B, so that it holds at most p - k micro-batches.
#include <algorithm>

#include "parallel/pipeline/schedule/builders.h"
#include "parallel/pipeline/schedule/program.h"
#include "src/core/error.h"

namespace espalier::parallel {
namespace {

std::vector<Action> forwards_first(int stage, int micro_batches, int warm) {
  Program program;
  program.next(ActionKind::forward, stage, warm);
  for (int i = 0; i < micro_batches; ++i) {
    if (warm + i < micro_batches) {
      program.next(ActionKind::forward, stage);
    }
    program.next(ActionKind::backward, stage);
  }
  return program.take();
}

Schedule one_stage_a_rank(std::string name, const ScheduleShape& shape) {
  return {.name = std::move(name),
          .ranks = shape.ranks,
          .chunks = 1,
          .micro_batches = shape.micro_batches,
          .programs = {}};
}

Schedule by_warm_up(Schedule schedule) {
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const int warm = std::min(schedule.ranks - 1 - rank, schedule.micro_batches);
    schedule.programs.push_back(forwards_first(rank, schedule.micro_batches, warm));
  }
  return complete(std::move(schedule));
}

/// Of 1F1B over `stages` stages, an order that one rank can follow: the stages take turns, from the
/// last to the first, with whatever is possible.
std::vector<Action> one_after_the_other(int stages, int micro_batches) {
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

}  // namespace

Schedule gpipe(const ScheduleShape& shape) {
  Schedule schedule = one_stage_a_rank("gpipe", shape);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    schedule.programs.push_back(forwards_first(rank, shape.micro_batches, shape.micro_batches));
  }
  return complete(std::move(schedule));
}

Schedule one_forward_one_backward(const ScheduleShape& shape) {
  return by_warm_up(one_stage_a_rank("1f1b", shape));
}

/// In groups of p micro-batches, through a rank's chunks one after the other.
Schedule forward_only(const Schedule& like, int micro_batches) {
  Schedule schedule{.name = "evaluation",
                    .ranks = like.ranks,
                    .chunks = like.chunks,
                    .micro_batches = micro_batches,
                    .placement = like.placement,
                    .programs = {}};
  for (int rank = 0; rank < like.ranks; ++rank) {
    Program program;
    for (int group = 0; group < micro_batches; group += like.ranks) {
      for (int chunk = 0; chunk < like.chunks; ++chunk) {
        for (int i = group; i < std::min(group + like.ranks, micro_batches); ++i) {
          program.add(ActionKind::forward, schedule.stage_of(rank, chunk), i);
        }
      }
    }
    schedule.programs.push_back(program.take());
  }
  return complete(std::move(schedule));
}

Schedule one_micro_batch(const Schedule& like) {
  Schedule schedule{.name = "one micro-batch",
                    .ranks = like.ranks,
                    .chunks = like.chunks,
                    .micro_batches = 1,
                    .placement = like.placement,
                    .programs = {}};
  for (int rank = 0; rank < like.ranks; ++rank) {
    Program program;
    for (int stage = 0; stage < schedule.stages(); ++stage) {
      if (schedule.rank_of(stage) == rank) {
        program.next(ActionKind::forward, stage);
      }
    }
    for (int stage = schedule.stages() - 1; stage >= 0; --stage) {
      if (schedule.rank_of(stage) == rank) {
        program.next(ActionKind::backward, stage);
      }
    }
    schedule.programs.push_back(program.take());
  }
  return complete(std::move(schedule));
}

Schedule asynchronous(const ScheduleShape& shape) {
  Schedule schedule = one_stage_a_rank("async", shape);
  schedule.synchronous = false;
  schedule.every = shape.every;
  if (shape.chunks == 1) {
    return by_warm_up(std::move(schedule));
  }
  require(shape.ranks == 1, "chunks stand for the ranks of a pipeline", shape.ranks, shape.chunks);
  schedule.chunks = shape.chunks;
  schedule.programs.push_back(one_after_the_other(shape.chunks, shape.micro_batches));
  return complete(std::move(schedule));
}

}  // namespace espalier::parallel
