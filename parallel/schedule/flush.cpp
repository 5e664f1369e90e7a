// GPipe, 1F1B and asynchronous 1F1B: one stage a rank, whole backwards.
//
// All three: rank k runs `warm` forwards, then pairs of forward and backward, then the other
// backwards; m for GPipe, p - 1 - k for 1F1B, so that it holds at most p - k micro-batches.
#include <algorithm>

#include "parallel/schedule/builders.h"
#include "parallel/schedule/program.h"

namespace espalier::parallel {
namespace {

std::vector<Action> forwards_first(int stage, int micro_batches, int warm) {
  Program program;
  for (int i = 0; i < warm; ++i) {
    program.next(ActionKind::forward, stage);
  }
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

Schedule asynchronous(const ScheduleShape& shape) {
  Schedule schedule = one_stage_a_rank("async", shape);
  schedule.synchronous = false;
  return by_warm_up(std::move(schedule));
}

}  // namespace espalier::parallel
