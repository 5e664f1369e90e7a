#pragma once
// Distributed tests, written once as a function of a communicator.
//
//   TEST(Sum, IsRight) { on_ranks([](Communicator& comm) { … }); }
//   int main(int argc, char** argv) { return espalier::run_rank_tests(argc, argv); }
//
// Started alone, the program calls the body on 1, 2, 3, 4 and 7 threads. Under mpirun it calls it
// once, on the ranks of the job; rank 0 prints the list of tests, the others only what fails. The
// exit code is not 0 on any rank when a test failed on one.
#include <gtest/gtest.h>

#include <cstdio>
#include <exception>

#include "parallel/collectives.h"
#include "parallel/mpi_communicator.h"
#include "parallel/thread_communicator.h"

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

/// Prints failures only.
class QuietPrinter : public testing::EmptyTestEventListener {
 public:
  explicit QuietPrinter(int rank) : rank_(rank) {}
  void OnTestPartResult(const testing::TestPartResult& part) override {
    if (part.failed()) {
      fmt::print(stderr, "rank {}: {}:{}: {}\n", rank_, part.file_name() ? part.file_name() : "?",
                 part.line_number(), part.message());
    }
  }

 private:
  int rank_;
};

inline int run_rank_tests(int argc, char** argv,
                          const parallel::MpiOptions& options = {.timeout = 60}) {
  testing::InitGoogleTest(&argc, argv);
  if (!parallel::launched_by_mpi()) {
    return RUN_ALL_TESTS();
  }
  parallel::MpiScope mpi(options);
  job() = &mpi.world();
  try {
    if (const int rank = mpi.world().rank(); rank != 0) {
      auto& listeners = testing::UnitTest::GetInstance()->listeners();
      delete listeners.Release(listeners.default_result_printer());
      listeners.Append(new QuietPrinter(rank));  // gtest owns it
    }
    double failed = RUN_ALL_TESTS();
    parallel::all_reduce_small(mpi.world(), {&failed, 1}, parallel::Combine::max);
    return failed == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {}: {}\n", mpi.world().rank(), error.what());
    mpi.abort(1);
  }
}

}  // namespace espalier
