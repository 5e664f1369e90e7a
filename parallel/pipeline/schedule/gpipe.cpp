// GPipe: all forwards, then all backwards. A rank holds all m micro-batches. Idle time (p - 1)(F +
// B). Source: Huang et al., NeurIPS 2019.
#include "parallel/pipeline/schedule/builders.h"

namespace espalier::parallel {
namespace {

Schedule gpipe(const ScheduleShape& shape) {
  return complete(one_stage_a_rank("gpipe", shape), [&](int rank) {
    return forwards_first(rank, shape.micro_batches, shape.micro_batches);
  });
}

}  // namespace

extern const ScheduleEntry kGpipe{
    .name = "gpipe",
    .help = "all forwards, then all backwards",
    .build = gpipe,
};

}  // namespace espalier::parallel
