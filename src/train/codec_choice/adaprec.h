#pragma once
// AdaPrec's rounds (adaprec_choice.h) within a run. Every `codec_every` steps a round
//   1. trains `codec_trial` steps with each codec of `codec_candidates`, all from the same state,
//      and evaluates on the way;
//   2. restores that state and continues with the codec of the largest predicted gain per second.
//
// Rank 0 decides, by its clock, and broadcasts the choice. The time of trials is counted: it is in
// the record of the round (adaprec.jsonl, one line per round) and in `trial_ms` of the next step.
// A round is skipped if a trial would pass a change of masks, and in the last `codec_trial` steps.
// A codec whose loss or gradient is non-finite has diverged.
#include <functional>
#include <optional>
#include <string>

#include "io/config/config.h"
#include "io/run/metrics.h"
#include "parallel/transport/communicator.h"
#include "sparse/store/store.h"
#include "src/train/codec_choice/adaprec_choice.h"

namespace espalier::train {

class AdaPrec {
 public:
  /// Callbacks of the trainer. All are collective.
  struct Callbacks {
    std::function<void(const std::string& codec)> use;
    std::function<void(int64_t step)> train;  ///< the step after `step`; may throw Diverged
    std::function<double()> evaluate;         ///< validation loss
  };

  /// `store`: of this rank; trials change and restore it. Memory while trials run: values, low
  /// halves, master copies, moments and error feedback once more. `resumed_step`: step of the
  /// checkpoint, after which the log continues; -1: fresh run. All references must outlive it.
  AdaPrec(const io::Config& config, parallel::Communicator& comm, sparse::Store& store,
          Callbacks callbacks, int64_t resumed_step);

  bool due(int64_t step) const;
  /// Runs a round from the state after `step` steps and selects the chosen codec. Returns a note
  /// for the user.
  std::string round(int64_t step);
  /// Seconds spent in rounds since the last call.
  double take_seconds() { return std::exchange(seconds_, 0.0); }

 private:
  PrecisionCandidate trial(const std::string& codec, int64_t step, double value_now);

  const io::Config& config_;
  parallel::Communicator& comm_;
  sparse::Store& store_;
  Callbacks callbacks_;
  std::optional<io::MetricsWriter> log_;  ///< on rank 0
  double seconds_ = 0;
};

}  // namespace espalier::train
