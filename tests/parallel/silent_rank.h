#pragma once
// A collective in which the last rank takes no part: the others' errors name it and their own
// action.
#include <gmock/gmock.h>

#include <string>

#include "tests/support/ranks.h"

namespace espalier::parallel {

/// `body` runs on a communicator of all ranks, except on the last rank. Collective.
inline void expect_silent_rank_named(Communicator& comm, const std::string& doing,
                                     const std::function<void(Communicator&)>& body) {
  if (comm.size() == 1) {
    return;
  }
  const auto part = comm.split(0, comm.rank());
  const int silent = comm.size() - 1;
  if (comm.rank() != silent) {
    part->set_timeout(0.3);
    try {
      body(*part);
      ADD_FAILURE() << "it cannot be done";
    } catch (const PeerLost& error) {
      EXPECT_THAT(error.ranks(), ::testing::Contains(silent));
      EXPECT_THAT(error.what(), ::testing::HasSubstr("while " + doing));
    }
  }
  barrier(comm);
}

}  // namespace espalier::parallel
