#pragma once
// The pipeline schedules by name, each in a file of this folder. docs/schedules.md has the table of
// their costs.
//
// Adding one: its file with a ScheduleEntry, its line in registry.cpp, a row of the table in
// tests/parallel/schedule_test.cpp. The tests then check, simulate and run it.
#include "parallel/pipeline/schedule/schedule.h"
#include "src/core/registry.h"

namespace espalier::parallel {

/// The sizes of a schedule.
struct ScheduleShape {
  int ranks = 1;                     ///< p
  int micro_batches = 1;             ///< m
  int chunks = 1;                    ///< v: stages a rank, if the schedule supports several
  int micro_batches_per_update = 1;  ///< micro-batches of an update, for an asynchronous schedule
};

struct ScheduleEntry {
  std::string_view name;
  std::string_view help;
  /// A pure function of the sizes. Throws Failure with the fix for unsupported sizes. Null: the
  /// order depends on arrival times (message_driven.h).
  Schedule (*build)(const ScheduleShape& shape) = nullptr;
  int chunks = 1;           ///< stages a rank; 0: ScheduleShape::chunks
  bool synchronous = true;  ///< all stages update at the end of a step; else each stage updates
                            ///< separately
  bool automatic = false;   ///< parallel.schedule = "auto" may take it (make_plan)

  bool by_arrival() const { return build == nullptr; }
  int chunks_of(const ScheduleShape& shape) const { return chunks > 0 ? chunks : shape.chunks; }
};

Registry<ScheduleEntry> schedules();

/// "auto", as long as no plan has resolved it, is 1f1b. Throws Failure that lists the names.
const ScheduleEntry& schedule_entry(std::string_view name);

/// Builds a schedule by name, except those by arrival. Throws Failure for sizes below 1.
Schedule make_schedule(std::string_view name, const ScheduleShape& shape);

}  // namespace espalier::parallel
