// Zero-bubble schedules with one stage a rank: the order of 1F1B, but a backward's weight part can
// wait, and fills what would be idle at the end. Rank k
//
//   h1   warms up with p - 1 - k forwards, puts off its first k weight parts        bubble (p-1)(F+Bi-W)
//   h2   with 2 (p - 1 - k) forwards, puts off 2k; holds up to 2p - 1 activations          (p-1)(F+Bi-2W)
//
// h2's last formula takes the optimizer's step as free of a meeting of all ranks: the idle time
// counted is that between a rank's own first and last action. Source: Qi et al., "Zero Bubble
// Pipeline Parallelism", ICLR 2024.
#include <algorithm>

#include "parallel/pipeline/schedule/builders.h"
#include "parallel/pipeline/schedule/program.h"

namespace espalier::parallel {
namespace {

std::vector<Action> program_of(int stage, int micro_batches, int warm, int put_off) {
  Program program;
  program.next(ActionKind::forward, stage, warm);
  for (int i = 0; i < micro_batches; ++i) {
    if (warm + i < micro_batches) {
      program.next(ActionKind::forward, stage);
    }
    program.next(ActionKind::backward_input, stage);
    if (i >= put_off) {
      program.next(ActionKind::backward_weight, stage);
    }
  }
  for (int i = std::max(0, micro_batches - put_off); i < micro_batches; ++i) {
    program.next(ActionKind::backward_weight, stage);
  }
  return program.take();
}

}  // namespace

Schedule zero_bubble(const ScheduleShape& shape, ZeroBubble variant) {
  const bool twice = variant == ZeroBubble::h2;
  const int factor = twice ? 2 : 1;
  Schedule schedule{.name = twice ? "zb-h2" : "zb-h1",
                    .ranks = shape.ranks,
                    .chunks = 1,
                    .micro_batches = shape.micro_batches,
                    .programs = {}};
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const int warm = std::min(factor * (shape.ranks - 1 - rank), shape.micro_batches);
    schedule.programs.push_back(program_of(rank, shape.micro_batches, warm, factor * rank));
  }
  return complete(std::move(schedule));
}

}  // namespace espalier::parallel
