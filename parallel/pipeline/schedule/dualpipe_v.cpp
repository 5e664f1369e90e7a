// DualPipe in V-shaped placement (DualPipe "cut in half"): forwards of one chunk run beside
// backwards of the other. A backend that can overlap them hides the messages of one behind the
// matrix products of the other. Source: DeepSeek-AI, DualPipe (2024); cut in half by Qi et al.
#include "parallel/pipeline/schedule/builders.h"

namespace espalier::parallel {
namespace {

std::vector<Action> dualpipe_v_program(const Schedule& schedule, int rank) {
  const int after = schedule.ranks - rank - 1;
  VProgram program(schedule, rank);
  repeat(2 * after, [&](int) { program.forward(0); });
  repeat(rank + 1, [&](int) {
    program.forward(0);
    program.forward(1);
  });
  repeat(after, [&](int) {
    program.backward_input(1);
    program.backward_weight();
    program.forward(1);
  });
  repeat(schedule.micro_batches - 2 * schedule.ranks + rank + 1, [&](int i) {
    if (i == 0 && after == 0) {
      program.forward(0);  // the last rank of the V has nothing to overlap yet
      program.backward(1);
    } else {
      program.forward_and_backward(0, 1);
    }
    program.forward_and_backward(1, 0);
  });
  repeat(after, [&](int) {
    program.backward(1);
    program.forward_and_backward(1, 0);
  });
  // From the middle on, weight gradients are deferred, to fill the end.
  auto drain = [&](int chunk, bool deferred) {
    deferred ? program.backward_input(chunk) : program.backward(chunk);
  };
  repeat(rank + 1, [&](int i) {
    const int half = (rank + 1) / 2;
    drain(1, i > half || (i == half && rank % 2 == 1));
    drain(0, i >= half);
  });
  repeat(after, [&](int) {
    program.backward_weight();
    program.backward_input(0);
  });
  repeat(rank + 1, [&](int) { program.backward_weight(); });
  return program.take();
}

Schedule dualpipe_v(const ScheduleShape& shape) {
  check(shape.micro_batches >= 2 * shape.ranks,
        "schedule dualpipe-v needs at least {1} micro-batches for {0} pipeline ranks, not {2}; use "
        "{1} or more, or schedule zb-v",
        shape.ranks, 2 * shape.ranks, shape.micro_batches);
  const Schedule empty = v_shaped("dualpipe-v", shape);
  return complete(empty, [&](int rank) { return dualpipe_v_program(empty, rank); });
}

}  // namespace

extern const ScheduleEntry kDualPipeV{
    .name = "dualpipe-v",
    .help = "as zb-v, forwards beside backwards; takes 2p or more micro-batches",
    .build = dualpipe_v,
    .chunks = 2,
};

}  // namespace espalier::parallel
