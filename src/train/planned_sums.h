#pragma once
// The sums of a step from device to device (device_transfer.h), asked for on a dry arena, where
// they hold from then on what those of a run hold. Of values that are gathered there is nothing:
// they are sent from, and come to, where they are. Codecs that a run chooses by gradients count as
// the widest there is; else a plan has the bytes of the run.
#include "parallel/device/low_rank.h"
#include "src/train/stage.h"

namespace espalier::train {

class PlannedSums {
 public:
  /// Of replica `rank` of `ranks`. Both must outlive it.
  PlannedSums(const io::Config& config, Stage& stage, int rank, int ranks);

  /// With the masks that the stage has now; with codec powersgd as before and after its warm-up.
  /// Without slices of a shared optimizer (Stage::Options) sums are whole, and in an asynchronous
  /// schedule those of each part by themselves.
  void ask();

 private:
  void ask_in(int64_t step);
  void ask(const parallel::BucketPipeline::Step& step);

  const io::Config& config_;
  Stage& stage_;
  Stream stream_;
  parallel::PlannedLink link_;
  parallel::Wire wire_;
  parallel::LowRank low_rank_;
  parallel::DeviceReduction reduction_;
  parallel::DeviceLowRankReduction factored_;
};

}  // namespace espalier::train
