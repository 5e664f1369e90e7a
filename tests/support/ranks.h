#pragma once
// Distributed tests, written once as a function of a communicator.
//
//   TEST(Sum, IsRight) { on_ranks([](Communicator& comm) { … }); }
//
// Without mpirun the program calls the body on 1, 2, 3, 4 and 7 threads. Under mpirun it calls it
// once, on the ranks of the job (support/main.cpp).
#include <gtest/gtest.h>

#include <functional>

#include "parallel/transport/collectives.h"
#include "parallel/transport/thread_communicator.h"

namespace espalier {

/// The job's communicator under mpirun, else null.
inline parallel::Communicator*& job() {
  static parallel::Communicator* world = nullptr;
  return world;
}

inline void on_ranks(const std::function<void(parallel::Communicator&)>& body,
                     const parallel::ThreadOptions& options = {.timeout = 60}) {
  if (job() != nullptr) {
    body(*job());
    return;
  }
  for (const int ranks : {1, 2, 3, 4, 7}) {
    SCOPED_TRACE(fmt::format("{} ranks", ranks));
    parallel::run_ranks(ranks, body, options);
  }
}

}  // namespace espalier
