#include "parallel/pipeline/schedule/registry.h"

namespace espalier::parallel {

ESPALIER_REGISTRY(kSchedules, ScheduleEntry, kGpipe, kOneForwardOneBackward, kInterleaved,
                  kZeroBubble, kZeroBubbleV, kDualPipeV, kVHalf, kVMin, kAsynchronous,
                  kMessageDriven);

Registry<ScheduleEntry> schedules() { return kSchedules; }

const ScheduleEntry& schedule_entry(std::string_view name) {
  return name == "auto" ? kOneForwardOneBackward : find(schedules(), "schedule", name);
}

Schedule make_schedule(std::string_view name, const ScheduleShape& shape) {
  const ScheduleEntry& entry = schedule_entry(name);
  check(shape.ranks >= 1 && shape.micro_batches >= 1 && shape.chunks >= 1,
        "a schedule of {} stages, {} micro-batches and {} chunks per rank is empty; set each to at "
        "least 1",
        shape.ranks, shape.micro_batches, shape.chunks);
  require(!entry.by_arrival(), "a schedule whose order does not depend on arrival times", name);
  ScheduleShape fixed = shape;
  fixed.chunks = entry.chunks_of(shape);
  return entry.build(fixed);
}

}  // namespace espalier::parallel
