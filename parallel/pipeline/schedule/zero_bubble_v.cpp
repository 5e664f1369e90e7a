// ZB-V: two stages a rank in V-shaped placement, so that the last rank passes activations to itself
// and rank 0 computes the loss. It has the activations of 1F1B, and no idle time when F = Bi = W
// and updates do not synchronise the ranks. Source: Qi et al., ICLR 2024 and "Pipeline Parallelism
// with Controllable Memory", NeurIPS 2024.
#include <algorithm>

#include "parallel/pipeline/schedule/builders.h"

namespace espalier::parallel {
namespace {

/// With fewer micro-batches than fill the pipeline: removes the actions of the missing ones.
std::vector<Action> only_first(std::vector<Action> program, int micro_batches) {
  std::erase_if(program,
                [micro_batches](const Action& a) { return a.micro_batch >= micro_batches; });
  return program;
}

std::vector<Action> zero_bubble_v_program(const Schedule& schedule, int rank) {
  const int ranks = schedule.ranks;
  const int filled = std::max(2 * ranks - 1, schedule.micro_batches);
  VProgram program(schedule, rank);
  auto whole_backward = [&program](int chunk) {
    program.backward_input(chunk);
    program.backward_weight();
  };
  repeat(2 * (ranks - rank) - 1, [&](int) { program.forward(0); });
  repeat(rank, [&](int) {
    program.forward(1);
    program.forward(0);
  });
  repeat(ranks - rank, [&](int) {
    program.forward(1);
    whole_backward(1);
  });
  while (program.forwards(1) < program.forwards(0) || program.forwards(0) < filled) {
    if (program.forwards(0) < filled) {
      program.forward(0);
    }
    whole_backward(0);
    program.forward(1);
    whole_backward(1);
  }
  repeat(rank, [&](int) {
    program.backward_input(0);
    program.backward_input(1);
  });
  repeat(ranks - rank, [&](int) {
    program.backward_input(0);
    program.backward_weight(0);
  });
  for (const int chunk : {1, 0}) {
    while (program.weight_due(chunk)) {
      program.backward_weight(chunk);
    }
  }
  return only_first(program.take(), schedule.micro_batches);
}

Schedule zero_bubble_v(const ScheduleShape& shape) {
  const Schedule empty = v_shaped("zb-v", shape);
  return complete(empty, [&](int rank) { return zero_bubble_v_program(empty, rank); });
}

}  // namespace

extern const ScheduleEntry kZeroBubbleV{
    .name = "zb-v",
    .help = "two stages a rank, there and back; no idle time when F = Bi = W",
    .build = zero_bubble_v,
    .chunks = 2,
    .automatic = true,
};

}  // namespace espalier::parallel
