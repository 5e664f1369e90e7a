// Zero-bubble schedules with one stage a rank: the order of 1F1B, but weight gradients are deferred
// to fill idle time at the end. Rank k
//
//   h1   warms up with p - 1 - k forwards, defers its first k weight gradients; bubble
//        (p - 1)(F + Bi - W)
//   h2   warms up with 2 (p - 1 - k) forwards, defers 2k; holds up to 2p - 1 activations; bubble
//        (p - 1)(F + Bi - 2W)
//
// The bubble is the idle time between a rank's own first and last action; this assumes that the
// optimizer's step does not synchronise the ranks. Source: Qi et al., "Zero Bubble Pipeline
// Parallelism", ICLR 2024.
#include <algorithm>

#include "parallel/pipeline/schedule/builders.h"

namespace espalier::parallel {
namespace {

/// `warm` and `deferred` of rank k are factor · (p - 1 - k) and factor · k.
Schedule zero_bubble(std::string_view name, const ScheduleShape& shape, int factor) {
  return complete(one_stage_a_rank(name, shape), [&](int rank) {
    const int warm = std::min(factor * (shape.ranks - 1 - rank), shape.micro_batches);
    return forwards_first(rank, shape.micro_batches, warm, factor * rank);
  });
}

Schedule h1(const ScheduleShape& shape) { return zero_bubble("zb-h1", shape, 1); }
Schedule h2(const ScheduleShape& shape) { return zero_bubble("zb-h2", shape, 2); }

}  // namespace

extern const ScheduleEntry kZeroBubble{
    .name = "zero-bubble",
    .help = "the same as zb-h1",
    .build = h1,
};
extern const ScheduleEntry kZeroBubbleH1{
    .name = "zb-h1",
    .help = "1f1b that defers weight gradients, with the activations of 1f1b",
    .build = h1,
};
extern const ScheduleEntry kZeroBubbleH2{
    .name = "zb-h2",
    .help = "as zb-h1, with twice the activations",
    .build = h2,
};

}  // namespace espalier::parallel
