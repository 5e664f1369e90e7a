// ZB-H1, a zero-bubble schedule with one stage a rank: the order of 1F1B, but rank k defers its
// first k weight gradients to fill idle time at the end. Bubble (p - 1)(F + Bi - W).
//
// The bubble is the idle time between a rank's own first and last action; this assumes that the
// optimizer's step does not synchronise the ranks. Source: Qi et al., "Zero Bubble Pipeline
// Parallelism", ICLR 2024.
#include "parallel/pipeline/schedule/builders.h"

namespace espalier::parallel {
namespace {

Schedule zero_bubble(const ScheduleShape& shape) {
  const Schedule empty = one_stage_a_rank("zb-h1", shape);
  return complete(empty, [&](int rank) {
    return forwards_first(rank, shape.micro_batches, warm_up(empty, rank), rank);
  });
}

}  // namespace

extern const ScheduleEntry kZeroBubble{
    .name = "zb-h1",
    .help = "1f1b that defers weight gradients, with the activations of 1f1b",
    .build = zero_bubble,
    .automatic = true,
};

}  // namespace espalier::parallel
