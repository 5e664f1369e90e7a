#pragma once
// The sums of a step from device to device (device_transfer.h), asked for on a dry arena, where
// they hold from then on what those of a run hold. Values that are gathered as they are take
// nothing: they are sent from, and come to, where they are. Where a run chooses codecs, all count
// that it may choose, and what it times; else a plan has the bytes of the run.
#include "parallel/device/reduction.h"
#include "src/train/stage.h"

namespace espalier::train {

class PlannedSums {
 public:
  /// Of replica `rank` of `ranks`. Without slices of a shared optimizer (Stage::Options) sums are
  /// whole, and in an asynchronous schedule those of each part by themselves.
  PlannedSums(const io::Config& config, Stage& stage, int rank, int ranks);

 private:
  void time(const io::Config& config, Stage& stage);
  void ask(const io::Config& config, Stage& stage);
  void ask(const parallel::BucketPipeline::Step& step);

  Stream stream_;
  parallel::PlannedLink link_;
  parallel::Wire wire_, value_wire_;
  parallel::DeviceReduction reduction_;
};

}  // namespace espalier::train
