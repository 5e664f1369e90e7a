// 1F1B with flushes: rank k runs p - 1 - k forwards, then pairs of a forward and a backward, then
// the remaining backwards. It holds at most p - k micro-batches. Idle time (p - 1)(F + B). Source:
// Narayanan et al., SOSP 2019 (without flushes).
#include "parallel/pipeline/schedule/builders.h"

namespace espalier::parallel {
namespace {

Schedule one_forward_one_backward(const ScheduleShape& shape) {
  const Schedule empty = one_stage_a_rank("1f1b", shape);
  return complete(empty, [&](int rank) {
    return forwards_first(rank, shape.micro_batches, warm_up(empty, rank));
  });
}

}  // namespace

extern const ScheduleEntry kOneForwardOneBackward{
    .name = "1f1b",
    .help = "one forward, one backward; holds p - k micro-batches",
    .build = one_forward_one_backward,
    .automatic = true,
};

}  // namespace espalier::parallel
