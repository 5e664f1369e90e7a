#pragma once
// Errors of one rank that all ranks must throw, and checks that ranks are equal.
#include <string>

#include "io/config/config.h"
#include "parallel/transport/communicator.h"
#include "sparse/store/store.h"

namespace espalier::train {

/// The same failure on every rank: rank 0 alone reports it.
class SharedFailure : public Failure {
 public:
  using Failure::Failure;
};

/// Collective. The text of rank 0.
std::string broadcast_text(parallel::Communicator& comm, std::string text);
/// Collective. Throws SharedFailure with rank 0's message on all ranks unless it is empty.
void agree(parallel::Communicator& comm, const std::string& error);

/// Collective. Throws SharedFailure, naming the first setting that differs and the ranks, unless
/// all ranks have the same settings outside [run]: message sizes follow from them.
void compare_settings(const io::Config& config, parallel::Communicator& comm);

/// Collective. Throws Failure, naming array and ranks, unless replicated arrays have the same bits
/// on all ranks: values and exact copies, and without sharding low halves and moments.
void compare_ranks(const sparse::Store& store, parallel::Communicator& comm);

/// Collective. Runs `action` on rank 0, then on the others, so that an error of config or files is
/// reported once. `action` must not communicate.
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
