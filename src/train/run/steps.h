#pragma once
// The step loop of one rank: new masks, forward and backward with reductions, update, evaluation.
// All ranks run it in step.
//
// On a device a step is enqueued while the previous step runs: forwards, backwards, reductions
// between devices, and the update; the host waits for none of them. Then the previous step is
// finished: its losses and norm have arrived, ranks sum them, and the step is reported. A step is
// finished before anything else is enqueued if the state is read after it. Without a device each
// step is finished immediately.
//
// A step with a non-finite loss or gradient norm changes nothing, and neither does a step that was
// enqueued after it (optim/norm.h). Rows with a non-finite loss have non-finite gradients
// (kernels.h). So the state afterwards is the state before that step.
#include <memory>
#include <optional>

#include "src/train/codec_choice/adaprec.h"
#include "src/train/run/reporter.h"

namespace espalier::train {

class StepLoop {
 public:
  /// All must outlive it.
  StepLoop(Run& run, Reporter& reporter, const TrainerOptions& options);

  /// Steps up to `last`, or until a stop is requested on any rank.
  void run_to(int64_t last);

 private:
  void train_step(int64_t last);
  void train_segment(int64_t last);
  void change_masks_if_due();
  bool state_is_read_after(int64_t step) const;
  /// Bytes sent by this rank.
  struct Sent {
    int64_t all = 0, allreduce = 0, p2p = 0;
    Sent operator-(const Sent& other) const {
      return {all - other.all, allreduce - other.allreduce, p2p - other.p2p};
    }
    Sent operator+(const Sent& other) const {
      return {all + other.all, allreduce + other.allreduce, p2p + other.p2p};
    }
  };
  Sent sent_so_far() const;
  /// An enqueued step and its results so far.
  struct PendingStep {
    StepReport report;
    optim::PendingUpdate update;
    Sent sent;
    double begin = 0;  ///< seconds
  };
  PendingStep enqueue_step();
  StepReport finish_step(PendingStep pending);
  void restore_gradients(int64_t step);
  void run_trial_step(int64_t step);
  void report(StepReport report);
  double evaluate(int64_t batches);
  /// The factor of the loss of one row at this loss scale.
  double row_scale(double loss_scale) const;
  bool stop_requested() const { return options_.stop_requested && options_.stop_requested(); }
  template <class Thrown>
  void check_loss(int64_t step, double loss) const;
  template <class Thrown>
  [[noreturn]] void fail_norm(int64_t step, double norm) const;

  Run& run_;
  Reporter& reporter_;
  const TrainerOptions& options_;
  std::unique_ptr<AdaPrec> adaprec_;    ///< with codec "adaprec" only
  std::optional<PendingStep> pending_;  ///< the step that is not finished
  double finished_ = 0;                 ///< time at which the last step was finished
  bool stopping_ = false;
};

}  // namespace espalier::train
