// The main function of all test programs.
//
//   PROGRAM [gtest flags]                     exit code 77, ctest's "skipped", if all selected
//   tests
//                                             skipped themselves
//   mpirun -n P PROGRAM [--part-bytes N] …    rank 0 prints the list of tests, the others only
//                                             failures; the exit code is nonzero on all ranks if a
//                                             test failed on one. N: longest part of a message
//   PROGRAM FLAG ARGUMENT                     a child process of a test (child.h)
#include <gtest/gtest.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "parallel/transport/mpi_communicator.h"
#include "tests/support/child.h"
#include "tests/support/ranks.h"

namespace espalier {
namespace {

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

/// Runs flush each checkpoint to the disk: their folders are in memory where it has room.
void use_memory_for_files() {
  struct statvfs memory {};
  constexpr uint64_t kNeeded = uint64_t{2} << 30;
  if (statvfs("/dev/shm", &memory) == 0 && memory.f_bavail * memory.f_frsize >= kNeeded &&
      access("/dev/shm", W_OK) == 0) {
    setenv("TMPDIR", "/dev/shm", 0);
  }
}

int run_alone() {
  const int failed = RUN_ALL_TESTS();
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  constexpr int kSkipped = 77;
  const bool skipped =
      all.test_to_run_count() > 0 && all.skipped_test_count() == all.test_to_run_count();
  return failed == 0 && skipped ? kSkipped : failed;
}

int run_as_rank(const parallel::MpiOptions& options) {
  parallel::MpiScope mpi(options);
  job() = &mpi.world();
  try {
    if (const int rank = mpi.world().rank(); rank != 0) {
      auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
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

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  using namespace espalier;
  use_memory_for_files();
  testing::InitGoogleTest(&argc, argv);
  parallel::MpiOptions options{.timeout = 60};
  if (argc == 3) {
    const std::string flag = argv[1];
    if (const auto child = children().find(flag); child != children().end()) {
      return child->second(argv[2]);
    }
    if (flag == "--part-bytes") {
      options.part_bytes = static_cast<size_t>(std::atoll(argv[2]));
    }
  }
  return parallel::launched_by_mpi() ? run_as_rank(options) : run_alone();
}
