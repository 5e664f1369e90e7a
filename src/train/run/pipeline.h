#pragma once
// Runs the actions of this rank's stages in the order of the schedule. Without a pipeline this is
// the loop over micro-batches: a schedule of one rank.
//
//   micro-batch    runner -> run: Source fills the part's inputs, Part::forward, Part::backward
//   gradient       Part::backward -> layer_done -> DataParallel::gradient_ready
//
// Synchronous schedules leave the rest of the exchange, and the update, to the step loop. In an
// asynchronous schedule each part exchanges its gradient of a step over the replicas and updates
// its weights once the gradient is complete; its method predicts or keeps the weights for each pass
// (part_weights.h). Several steps run between two drains of the pipeline.
//
// Micro-batches accumulate in ascending order in every schedule, so gradients have the same bits as
// without a pipeline. Exception: tied embeddings, because the shares of head and embedding are
// summed separately and added once per step.
#include <functional>
#include <memory>

#include "parallel/pipeline/runner.h"
#include "src/train/run/data_parallel.h"
#include "src/train/run/source.h"
#include "src/train/stage/layout.h"
#include "src/train/stage/part_weights.h"
#include "src/train/stage/stage.h"

namespace espalier::train {

/// The route of messages between stages: by NCCL if each rank has its own GPU, by MPI if it accepts
/// device addresses, or through the host. Chosen before planning, equally on all ranks, because it
/// determines where buffers are.
struct StageLink {
  parallel::CarrierKind carrier = parallel::CarrierKind::host;
  std::string note;      ///< for the user; empty: all memory is host memory
  std::string obstacle;  ///< why the route given by `parallel.device_link` is not available
};

/// Collective over all ranks of a run that may have stages.
StageLink choose_stage_link(const io::Config& config, parallel::Communicator& world,
                            Stream& stream);

/// The expected route, for plans of other machines.
parallel::CarrierKind planned_carrier(const io::Config& config, bool device);

class Pipeline final : private parallel::PipelineWork {
 public:
  struct Options {
    int64_t samples = 1;       ///< of a micro-batch
    int64_t first_sample = 0;  ///< of this replica's share, in the global batch
    parallel::CarrierKind carrier = parallel::CarrierKind::host;
  };
  /// The components that a pipeline uses. All must outlive it.
  struct Parts {
    const Layout& layout;
    Ranks& ranks;
    Stage& stage;
    const Source& source;
    DataParallel& data_parallel;
  };
  /// Collective over the pipeline.
  Pipeline(const io::Config& config, const Parts& parts, const Options& options);

  /// Enqueues forward and backward of all micro-batches of `step`, between
  /// DataParallel::begin_step and finish_reduce. `loss_scale`: factor of the loss of one row.
  void forward_backward(int64_t step, double loss_scale);
  struct Losses {
    double targets = 0;  ///< sum over rows: cross-entropy
    double teacher = 0;  ///< likewise: divergence from the teacher (model::DistillationTarget)
    int64_t top1 = 0, top5 = 0;  ///< of evaluations, see Part::Loss
  };
  /// The losses that this rank computed (the last stage's) in steps up to `last` since the last
  /// call. Waits for them.
  Losses take_losses(int64_t last = Part::kAllSteps);

  /// Forward and backward of one micro-batch of these samples of the global batch, without exchange
  /// and losses. At most as many samples as a micro-batch has.
  void probe(int64_t step, const Range& samples, double loss_scale);

  /// One step of an asynchronous schedule, as far as this rank computed it.
  struct Outcome {
    Losses losses;
    double squares = 0;  ///< sum over parts of the squared gradient norm
  };
  /// Called before an update. A callback throws if the loss of this rank, or the gradient norm of a
  /// part that was not updated, ends the run.
  struct Checks {
    std::function<void(int64_t step, double loss)> loss;
    std::function<void(int64_t step, double norm)> norm;
  };
  /// Steps [first, first + steps) of an asynchronous schedule.
  std::vector<Outcome> forward_backward_exchange_update(int64_t first, int64_t steps,
                                                        double loss_scale, const Checks& checks);

  /// Sums over validation samples [first, first + samples).
  Losses evaluate(int64_t first, int64_t samples);

  /// Times of the last step, or of all steps since the last drain.
  const parallel::RunTimes& times() const { return times_; }
  /// The part of `times().reduced` in exchanges over the replicas.
  double exchange_seconds() const { return exchange_seconds_; }
  parallel::CarrierKind carrier() const { return runner_.carrier(); }
  /// Weights by part; asynchronous schedules only.
  std::span<const PartWeights> weights() const { return weights_; }
  /// Schedule of the last step; of an asynchronous schedule, of all steps since the last drain.
  const parallel::Schedule& last_schedule() const {
    return layout_.asynchronous() ? segment_ : layout_.schedule;
  }

 private:
  /// The work of the runner's current call.
  struct Work {
    bool training = true;
    int64_t step = 0;          ///< of micro-batch 0
    int64_t first_sample = 0;  ///< of micro-batch 0 of a step
    int64_t samples = 0;       ///< of an evaluation or a probe
    double loss_scale = 1;
    int last_micro_batch = -1;  ///< makes gradients final, which are then exchanged; -1: none
    const Checks* checks = nullptr;
  };
  Mark run(const parallel::Action& action, std::span<const std::byte> in,
           std::span<std::byte> out) override;
  MicroBatch micro_batch(int number) const;
  void read_samples(Part& part, int number, const MicroBatch& batch);
  Part::Done layer_done(size_t part, int micro_batch);
  void exchange_part(size_t part, int64_t step);
  void update_part(size_t part, int64_t step);

  const Layout& layout_;
  Stage& stage_;
  const Source& source_;
  DataParallel& data_parallel_;
  Options options_;
  parallel::PipelineRunner runner_;
  parallel::RunTimes times_;
  double exchange_seconds_ = 0;
  Work work_;
  std::vector<PartWeights> weights_;  ///< [parts] of an asynchronous schedule
  std::vector<Outcome> outcomes_;  ///< [steps] empty: parts do not exchange and update on their own
  parallel::Schedule segment_;     ///< the last one of an asynchronous schedule
  std::vector<size_t> left_;       ///< [parts] number of layers whose gradients are not final
  int64_t reducible_ = 0;  ///< flat elements whose gradients replicas reduce during backward
};

}  // namespace espalier::train
