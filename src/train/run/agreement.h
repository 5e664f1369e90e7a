#pragma once
// Errors that one rank meets and all ranks must share; the proof that all ranks are equal.
#include <string>

#include "io/config/config.h"
#include "parallel/transport/communicator.h"
#include "sparse/store/store.h"

namespace espalier::train {

/// The same failure on every rank: whoever reports it needs to do so once.
class SharedFailure : public Failure {
 public:
  using Failure::Failure;
};

/// Collective. Throws SharedFailure with rank 0's message on all ranks unless it is empty.
void agree(parallel::Communicator& comm, const std::string& error);

/// Collective. All ranks must have the same settings, but for those of [run]: what they send each
/// other follows from them. Throws SharedFailure that names the first setting that differs, and the
/// ranks.
void compare_settings(const io::Config& config, parallel::Communicator& comm);

/// Collective. What every rank holds must have the same bits on all of them: values and exact
/// copies, and without sharding low halves and moments as well. Throws Failure that names what
/// differs, and the ranks.
void compare_ranks(const sparse::Store& store, parallel::Communicator& comm);

/// Collective. Runs `action` on rank 0, then on the others: a mistake that all would meet (config,
/// files) is met once and shared. `action` must not communicate.
template <class Action>
void on_first_rank_first(parallel::Communicator& comm, const Action& action) {
  std::string error;
  if (comm.rank() == 0) {
    try {
      action();
    } catch (const Failure& failure) {
      error = failure.what();
    }
  }
  agree(comm, error);
  if (comm.rank() != 0) {
    action();
  }
}

}  // namespace espalier::train
