#pragma once
// Errors of one rank that all ranks must throw, and checks that ranks are equal.
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "io/config/config.h"
#include "parallel/transport/busy.h"
#include "parallel/transport/communicator.h"
#include "sparse/store/store.h"

namespace espalier::train {

/// The same failure on every rank: rank 0 alone reports it.
class SharedFailure : public Failure {
 public:
  using Failure::Failure;
};
/// The loss or the gradient norm of a step is not finite.
class Diverged : public SharedFailure {
 public:
  using SharedFailure::SharedFailure;
};

/// Collective. The text of rank 0.
std::string broadcast_text(parallel::Communicator& comm, std::string text);
/// Collective. Throws rank 0's failure as SharedFailure on all ranks, if it has one.
void agree(parallel::Communicator& comm, const std::optional<Failure>& failure);

/// Collective. Throws, on all ranks, the failure of the first rank that has one.
void agree_on_any(parallel::Communicator& comm, std::optional<Failure> failure);

/// A text that must be the same on all ranks.
struct Fact {
  std::string name{};  ///< plural: "kernels"
  std::string value{};
  std::string fix{};  ///< what to do if it differs
};
/// Collective; all ranks pass the same names. Throws SharedFailure, naming the first fact that
/// differs with its values and ranks.
void compare_facts(std::span<const Fact> facts, parallel::Communicator& comm);

/// Collective. Throws SharedFailure, naming the first setting that differs and the ranks, unless
/// all ranks have the same settings outside [run]: message sizes follow from them.
void compare_settings(const io::Config& config, parallel::Communicator& comm);

/// Collective. Throws a retryable Failure, naming array and ranks, unless replicated arrays have
/// the same bits on all ranks: values and exact copies, indices, and without sharding low halves,
/// moments with their scales, and arrays of the pruning method.
void compare_ranks(const sparse::Store& store, parallel::Communicator& comm);

/// Collective. Runs `action` on rank 0, and throws its failure on all. `action` must not
/// communicate; it may take long (busy.h).
template <class Action>
void on_first_rank(parallel::Communicator& comm, const Action& action) {
  std::optional<Failure> first;
  if (comm.rank() == 0) {
    try {
      const parallel::Busy busy(comm);
      action();
    } catch (const Failure& failure) {
      first = failure;
    }
  }
  agree(comm, first);
}

/// Collective. The same; then runs it on the others, so that an error of config or files is
/// reported once.
template <class Action>
void on_first_rank_first(parallel::Communicator& comm, const Action& action) {
  on_first_rank(comm, action);
  if (comm.rank() != 0) {
    const parallel::Busy busy(comm);
    action();
  }
}

/// Collective. Runs `action` on all ranks at once; then throws, on all, the failure of the lowest
/// rank that has one, as SharedFailure. `action` must not communicate; it may take long (busy.h).
template <class Action>
void on_all_ranks(parallel::Communicator& comm, const Action& action) {
  std::optional<Failure> failure;
  try {
    const parallel::Busy busy(comm);
    action();
  } catch (const Failure& thrown) {
    failure = thrown;
  }
  agree_on_any(comm, std::move(failure));
}

}  // namespace espalier::train
