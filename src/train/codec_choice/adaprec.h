#pragma once
// AdaPrec's rounds (adaprec_choice.h) within a run with codec "adaprec:EVERY:TRIAL:CODEC+CODEC…".
// Every EVERY steps a round
//   1. trains TRIAL steps with each CODEC, all from the same state, and evaluates on the way;
//   2. continues from the end of the trial with the largest predicted gain per second, with its
//      codec: the steps of that trial are steps of the run, those of the others are lost.
//
// While candidates are tried, the state at the end of the trial that leads so far is kept. Memory
// while trials run: the state (values, low halves, master copies, moments, error feedback) twice
// more. Without memory for the second copy on every rank, or if the last candidate changes the
// order of the earlier ones, the winner's steps are repeated from the state before the round.
//
// Rank 0 decides, by its clock, and broadcasts the choice. The time of a round, without the steps
// that count, is in its record (adaprec.jsonl, one line per round) and in `trial_ms` of the next
// step. A round is skipped if a trial would pass a change of masks, and in the last TRIAL steps. A
// codec whose loss or gradient is non-finite has diverged. A round that is stopped has no effect.
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "io/config/config.h"
#include "io/run/metrics.h"
#include "parallel/transport/communicator.h"
#include "parallel/wire/codec.h"
#include "sparse/store/store.h"
#include "src/train/codec_choice/adaprec_choice.h"

namespace espalier::train {

class AdaPrec {
 public:
  /// The trainer's state outside the store, which trials change.
  struct Progress {
    int64_t step = 0;
    std::string codec{}, loss_scale{};  ///< CodecChoice::state, LossScale::state
  };
  /// Callbacks of the trainer. `use`, `train` and `evaluate` are collective.
  struct Callbacks {
    std::function<void(const std::string& codec)> use;
    std::function<void(int64_t step)> train;  ///< the step after `step`; may throw Diverged
    std::function<double()> evaluate;         ///< validation loss
    std::function<Progress()> progress = [] { return Progress(); };
    std::function<void(const Progress&)> restore = [](const Progress&) {};
    /// Mean bits per value of the codec in use, which is chosen by parameter.
    std::function<double()> bits = [] { return 32.0; };
    std::function<bool()> stopping = [] { return false; };  ///< the same on all ranks
  };

  /// `store`: of this rank; trials change and restore it. `resumed_step`: step of the checkpoint,
  /// after which the log continues; -1: fresh run. All references must outlive it.
  AdaPrec(const io::Config& config, parallel::Communicator& comm, sparse::Store& store,
          Callbacks callbacks, int64_t resumed_step);

  bool due(int64_t step) const;
  /// Runs a round from the state after `step` steps: selects the chosen codec, and leaves the state
  /// after the steps of its trial.
  struct Round {
    std::string codec{};  ///< chosen; empty: stopped
    std::string note{};   ///< for the user
  };
  Round round(int64_t step);
  /// Seconds spent in rounds since the last call, without the steps that count.
  double take_seconds() { return std::exchange(seconds_, 0.0); }

  /// For plans: holds the copies of a dry store's state that the rounds of a run over `replicas`
  /// make: under a budget one, the second only if there is room for it.
  static std::shared_ptr<const void> plan_copies(const io::Config& config, sparse::Store& store,
                                                 int replicas);

 private:
  PrecisionCandidate trial(const std::string& codec, int64_t step, double value_now);
  class StateCopy;
  void keep(std::unique_ptr<StateCopy>& leader);
  void restore(StateCopy& copy);
  double repeat(const std::string& codec, int64_t step);

  const io::Config& config_;
  parallel::CodecSpec codec_;  ///< the run's default codec
  parallel::Communicator& comm_;
  sparse::Store& store_;
  Callbacks callbacks_;
  std::optional<io::MetricsWriter> log_;  ///< on rank 0
  bool keeps_leader_ = true;              ///< there is memory for it; the same on all ranks
  double seconds_ = 0;
};

}  // namespace espalier::train
