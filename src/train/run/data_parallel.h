#pragma once
// Data parallelism: collectives of a step over the replicas of a stage, overlapped with backward
// (gradients) and, with ZeRO-1 (`parallel.zero` = 1), with the optimizer (values). p ranks, n kept
// elements, gradients of w bytes, values of v:
//
//   zero 0   all-reduce of gradients: 2 (p-1)/p w n bytes a rank; every rank updates all values
//   zero 1   reduce-scatter of gradients: (p-1)/p w n; all-reduce of the norm's words: 568 (p-1);
//            a rank updates its slices; all-gather of values: (p-1)/p v n, or in codes
//            (stage/wire_formats.h); in 16-bit runs norms and biases once more in fp32
//
// Gradients are sent in the codecs of `parallel.codec` (stage/wire_formats.h), by
// `parallel.reduction`. Collectives run between devices by NCCL if `parallel.device_link` and the
// machine allow it, else through the host (replica_route.h). Both give the same bits on all ranks,
// and without codecs the same as each other. Over a pipeline the norm is that of all stages.
#include <memory>
#include <optional>

#include "io/config/config.h"
#include "src/train/codec_choice/codec_choice.h"
#include "src/train/exchange/pipeline_reduction.h"
#include "src/train/exchange/replica_route.h"
#include "src/train/exchange/shards.h"
#include "src/train/exchange/state_check.h"
#include "src/train/stage/layout.h"
#include "src/train/stage/stage.h"

namespace espalier::train {

class DataParallel {
 public:
  /// Collective. `shards`: those of the stage's store. All must outlive it. Throws Failure if the
  /// config requires NCCL and it is not available.
  DataParallel(const io::Config& config, Ranks& ranks, Stage& stage, std::shared_ptr<Shards> shards,
               PipelineReduction& stages);
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// Before gradients are computed, after masks may have changed: times codecs for new sizes in the
  /// gradient buffer. `begin_step` includes it.
  void prepare() { codecs_.prepare(); }
  void begin_step(int64_t step);
  /// The kernels that compute the final gradients of flat elements [0, end) are enqueued.
  void gradient_ready(int64_t end);
  /// All gradients are enqueued: returns once kernels enqueued afterwards read the sums.
  void finish_reduce();
  /// Reduces the gradients of the parameters in `range`; all of them must be final. Not with
  /// ZeRO-1.
  void reduce(const sparse::ParameterRange& range, int64_t step);
  /// Enqueues the optimizer's update (Stage::result). Kernels enqueued afterwards find all values
  /// on all ranks.
  optim::PendingUpdate update(int64_t step, double lr);
  CodecChoice& codecs() { return codecs_; }
  /// The reduction of gradients (ReplicaRoute).
  const std::string& reduction() const { return route_.reduction(); }
  /// How device arrays reach other ranks, for the user; empty: no device, or one rank.
  const std::string& route() const { return route_text_; }
  /// State is constant from now, after `step` steps, until `clear_state_check` or the next update,
  /// which calls this.
  void record_state(int64_t step);
  /// The state kept its bits since it was recorded. Throws a retryable Failure.
  void verify_state() const;
  /// State was written: `verify_state` has nothing to compare with until the next record.
  void clear_state_check() { check_.clear(); }

 private:
  ReplicaRoute::Kind choose_route();
  void share_batch_norm();
  parallel::Wire& prepare_wire(int64_t step);
  void begin_sums();
  uint64_t rounding_key(int64_t step) const;
  void begin_gather();
  optim::PendingUpdate sharded_update(int64_t step, double lr);
  optim::GradientNorm::Sum norm_reduction();
  bool ends_may_differ() const;

  const io::Config& config_;
  int64_t step_ = 0;
  Ranks& ranks_;
  Stage& stage_;
  std::shared_ptr<Shards> shards_;
  PipelineReduction& stages_;
  bool chooses_ = false;  ///< codecs are chosen by this step's gradients, which are sent at its end
  GradientTimelineRecorder timeline_;
  std::string route_text_;
  ReplicaRoute route_;
  CodecChoice codecs_;
  StateCheck check_;
  std::optional<StateCheck> teacher_check_;  ///< of the weights of train.teacher
};

}  // namespace espalier::train
