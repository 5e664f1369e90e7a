#pragma once
// The collectives of a step over the replicas of a stage, for the store's present masks: of a run,
// and of its plan.
#include <memory>
#include <vector>

#include "io/config/config.h"
#include "parallel/reduction/buckets.h"
#include "src/train/exchange/timed_reduction.h"

namespace espalier::train {

/// The sum of all gradients; of a sharded optimizer each rank gets the sums of its slices.
parallel::BucketedCollective sum_step(const io::Config& config, const Stage& stage,
                                      parallel::Wire& wire);
/// The sum of the gradients of some parameters. Not with ZeRO-1.
parallel::BucketedCollective sum_step(const io::Config& config, const Stage& stage,
                                      parallel::Wire& wire, const sparse::ParameterRange& range);
/// With ZeRO-1: all ranks get the updated values of all slices. Sets the segments of `wire`, which
/// is used if values are encoded.
parallel::BucketedCollective gather_step(const io::Config& config, const Stage& stage,
                                         parallel::Wire& wire);

/// The memory of these collectives on the dry arena of a stage. Buffers keep the most that any
/// masks needed.
class PlannedCollectives {
 public:
  virtual ~PlannedCollectives() = default;
  /// Counts them for the present masks. Gradients have one of these `segments` in each step; the
  /// sums `timed` are measured (codec_choice.h).
  virtual void run(std::vector<WireSegments> segments, const std::vector<TimedSum>& timed) = 0;
};
/// Between devices: runs the buckets on a link that moves nothing, which allocates the bytes of the
/// run.
std::unique_ptr<PlannedCollectives> plan_on_device(const io::Config& config, Stage& stage, int rank,
                                                   int ranks);
/// Through the host: the staging of reductions (Reduction::reserve), and pinned copies. `places`:
/// RunShape::places.
std::unique_ptr<PlannedCollectives> plan_through_host(const io::Config& config, Stage& stage,
                                                      int ranks,
                                                      std::vector<std::vector<int>> places);

}  // namespace espalier::train
