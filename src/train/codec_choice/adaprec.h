#pragma once
// AdaPrec's rounds (adaprec_choice.h) within a run: every `codec_every` steps, from the same state,
// train `codec_trial` steps with each codec of `codec_candidates`, evaluating on the way; go on,
// from that state again, with the one whose predicted gain a second is largest.
//
// Rank 0 decides, by its clock, and tells the others. What trials cost is counted: it is in the
// record of the round (adaprec.jsonl, one line a round) and in `trial_ms` of the step that follows.
// No round is held where a trial would pass a change of masks, nor in the last `codec_trial` steps.
// A codec whose loss or gradient is no number has diverged.
#include <functional>
#include <optional>
#include <string>

#include "io/config/config.h"
#include "io/run/metrics.h"
#include "parallel/transport/communicator.h"
#include "src/train/codec_choice/adaprec_choice.h"
#include "src/train/codec_choice/state_copy.h"

namespace espalier::train {

class AdaPrec {
 public:
  /// What a round needs of the trainer. All are collective.
  struct Hands {
    std::function<void(const std::string& codec)> use;
    std::function<void(int64_t step)> train;  ///< the step after `step`; Failure: diverged
    std::function<double()> evaluate;         ///< validation loss
    std::function<StateCopy()> copy;
  };

  /// `resumed_step`: of the run, -1 of a fresh one; the log goes on there.
  AdaPrec(const io::Config& config, parallel::Communicator& comm, Hands hands,
          int64_t resumed_step);

  bool due(int64_t step) const;
  /// Holds a round at the state after `step` steps and goes on with the chosen codec. Returns what
  /// is to be told about it.
  std::string round(int64_t step);
  /// Seconds that rounds took since the last call.
  double take_seconds() { return std::exchange(seconds_, 0.0); }

 private:
  PrecisionCandidate trial(const std::string& codec, int64_t step, double value_now);

  const io::Config& config_;
  parallel::Communicator& comm_;
  Hands hands_;
  std::optional<io::MetricsWriter> log_;  ///< on rank 0
  double seconds_ = 0;
};

}  // namespace espalier::train
