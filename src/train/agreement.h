#pragma once
// Errors that one rank meets and all ranks must share.
#include <string>

#include "parallel/communicator.h"

namespace espalier::train {

/// The same failure on every rank: whoever reports it needs to do so once.
class SharedFailure : public Failure {
 public:
  using Failure::Failure;
};

/// Collective. Throws SharedFailure with rank 0's message on all ranks unless it is empty.
void agree(parallel::Communicator& comm, const std::string& error);

}  // namespace espalier::train
