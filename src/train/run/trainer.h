#pragma once
// Trains a network on one rank of a communicator; every rank makes a Trainer and runs it.
//
//   setup.h      config, ranks and data -> components of this rank, by an immutable plan
//                (run_plan.h)
//   steps.h      the step loop
//   reporter.h   metrics, checkpoints, summary, traces, notes
#include "src/train/run/reporter.h"
#include "src/train/run/setup.h"

namespace espalier::train {

struct RunResult {
  int64_t steps = 0;
  bool finished = false;  ///< all of train.steps
  bool stopped = false;   ///< early, by request on any rank
};

class Trainer {
 public:
  /// Collective.
  Trainer(const io::Config& config, parallel::Communicator& comm, TrainerOptions options);

  /// Trains to the end, or until a stop is requested; leaves a checkpoint and summary.json in both
  /// cases. Collective.
  RunResult run();

  Stage& stage() { return *run_.stage; }
  DataParallel& data_parallel() { return *run_.data_parallel; }
  Arena& arena() { return run_.backend->arena(); }
  const RunPlan& plan() const { return *run_.plan; }
  const Fit& fit() const { return plan().fit; }
  /// With the storages of the run, where `fit` assumes some.
  const MemoryPlan& planned() const { return run_.planned; }
  const Layout& layout() const { return plan().layout; }
  /// Parameters of the whole network.
  const Totals& totals() const { return run_.totals; }

 private:
  TrainerOptions options_;
  Run run_;
  Reporter reporter_;
};

}  // namespace espalier::train
