#pragma once
// The sums of a step from device to device (device_transfer.h), asked for on a dry arena, where
// they hold from then on what those of a run hold. Values that are gathered as they are take
// nothing: they are sent from, and come to, where they are. Where a run chooses codecs, all count
// that it may choose, and what it times; else a plan has the bytes of the run.
#include "parallel/reduction/powersgd/device.h"
#include "src/train/stage/stage.h"

namespace espalier::train {

class PlannedSums {
 public:
  /// Of replica `rank` of `ranks`. Both must outlive it. What a run times is asked for at once.
  PlannedSums(const io::Config& config, Stage& stage, int rank, int ranks);

  /// With the masks that the stage has now; with codec powersgd as before and after its warm-up.
  /// Without slices of a shared optimizer (Stage::Options) sums are whole, and in an asynchronous
  /// schedule those of each part by themselves.
  void ask();

 private:
  void time();
  void ask_in(int64_t step);
  void ask_with(const parallel::WireView& wire);
  void ask(const parallel::BucketPipeline::Step& step);

  const io::Config& config_;
  Stage& stage_;
  Stream stream_;
  parallel::PlannedLink link_;
  parallel::Wire wire_, value_wire_;
  parallel::LowRank low_rank_;
  parallel::DeviceReduction reduction_;
  parallel::DeviceLowRankReduction factored_;
};

}  // namespace espalier::train
