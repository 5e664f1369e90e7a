#pragma once
// Lottery tickets with rewinding (iterative magnitude pruning). Sources: Frankle and Carbin, ICLR
// 2019 (arXiv:1803.03635); Frankle et al., ICML 2020 (arXiv:1912.05671).
//
//   OUT/rewind    trains the unpruned network to step K
//   OUT/round-0   from there to train.steps
//   OUT/round-R   from the state of step K, with the masks that pruning.method makes of the end of
//                 round R - 1 at sparsity 1 - (1 - s)^(R / N); s: pruning.sparsity
//
// A round is a run that resumes from a checkpoint of step K with fewer elements, so learning rate
// and order of data continue from there, and each round can be resumed like any run. Kept elements
// have the values and moments of step K. The point to rewind to is a file: no second array.
#include <filesystem>
#include <functional>
#include <string>

#include "io/config/config.h"
#include "parallel/transport/communicator.h"
#include "pruning/registry.h"
#include "sparse/store/store.h"

namespace espalier::train {

class Lottery {
 public:
  struct Calls {
    /// Collective. Resumes the run in config.run.out and trains it to `step` (0: to its end).
    /// Returns whether it was not stopped before.
    std::function<bool(const io::Config& config, int64_t step)> train;
    /// Calls `body` with a store of the parameters of a checkpoint, fp32, before their values are
    /// loaded.
    std::function<void(const std::filesystem::path& checkpoint,
                       const std::function<void(sparse::Store& store)>& body)>
        with_store;
    std::function<void(const std::string& note)> note;  ///< on rank 0
  };

  /// `config` outlives this object. Throws Failure if it cannot be trained in rounds.
  Lottery(const io::Config& config, int64_t rounds, int64_t rewind, Calls calls);

  /// Collective. Trains what is not done yet; returns false if a run was stopped.
  bool run(parallel::Communicator& comm) const;

  std::filesystem::path round_directory(int64_t round) const;

 private:
  double sparsity(int64_t round) const;
  io::Config config_of_run(const std::filesystem::path& directory) const;
  std::filesystem::path checkpoint(const std::filesystem::path& directory, int64_t step) const;
  void claim_directory() const;
  bool train_to(parallel::Communicator& comm, const std::filesystem::path& directory,
                int64_t step) const;
  void begin(int64_t round) const;
  pruning::Result masks_after(int64_t round) const;

  const io::Config& config_;
  int64_t rounds_;
  int64_t rewind_;
  Calls calls_;
  std::filesystem::path out_;
};

}  // namespace espalier::train
