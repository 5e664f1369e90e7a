// Ranks that die, exit or hang under mpirun: all processes of the job end soon with a nonzero exit
// code, and the surviving ranks name the failed one. docs/collectives.md describes the behaviour of
// Open MPI and MPICH in each case. This test's program starts itself under mpirun, with the fault
// as argument.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "parallel/transport/collectives.h"
#include "parallel/transport/mpi_communicator.h"
#include "src/core/trace.h"
#include "tests/support/child.h"
#include "tests/support/matchers.h"

namespace espalier::parallel::rank_death_test {
namespace {

struct Outcome {
  int code = 0;
  std::string output;
  double seconds = 0;
};

/// Rank 1 of three dies in the given way while the others wait for it with a timeout of 4 s (a
/// loaded machine forwards messages slowly).
Outcome job_where_rank_1_does(const std::string& what) {
  const double begin = now_seconds();
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command =
      fmt::format("'{}/scripts/mpirun.sh' 3 '{}' --die {} 2>&1", ESPALIER_SOURCE_DIR, self, what);
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  check(pipe != nullptr, "cannot start {}", command);
  std::array<char, 4096> block{};
  while (const size_t n = fread(block.data(), 1, block.size(), pipe)) {
    outcome.output.append(block.data(), n);
  }
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  outcome.seconds = now_seconds() - begin;
  return outcome;
}

/// Whether rank 1, which printed its process id, ends within five seconds.
bool process_ended(const std::string& output) {
  const size_t at = output.find("pid ");
  check(at != std::string::npos, "rank 1 has not said its number: {}", output);
  const int pid = std::stoi(output.substr(at + 4));
  for (int i = 0; i < 50; ++i) {
    if (kill(pid, 0) != 0) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return false;
}

TEST(RankLife, EndsWithoutAnError) {
  const Outcome job = job_where_rank_1_does("nothing");
  EXPECT_EQ(job.code, 0) << job.output;
  EXPECT_THAT(job.output, Not(HasSubstr("has failed")));
}

constexpr int kAny = -1;

struct Death {
  const char* way;
  int code;             ///< of the job
  const char* message;  ///< printed by our program or by mpirun; empty: none is certain
  int hydra_code;       ///< of the job under Hydra, the launcher of MPICH; kAny: any but 0
  const char* hydra_message;
};

bool under_hydra() { return mpi_library().starts_with("MPICH"); }

class RankDeath : public ::testing::TestWithParam<Death> {};

TEST_P(RankDeath, EndsTheJobSoonWithAnError) {
  const Outcome job = job_where_rank_1_does(GetParam().way);
  if (under_hydra() && GetParam().hydra_code == kAny) {
    EXPECT_NE(job.code, 0) << job.output;
  } else {
    EXPECT_EQ(job.code, under_hydra() ? GetParam().hydra_code : GetParam().code) << job.output;
  }
  EXPECT_LT(job.seconds, 20);
  EXPECT_THAT(job.output, HasSubstr(under_hydra() ? GetParam().hydra_message : GetParam().message));
  EXPECT_THAT(job.output, Not(HasSubstr("survived")));
  EXPECT_TRUE(process_ended(job.output)) << "left behind: " << job.output;
}
constexpr const char* kHung = "rank 1 did not answer rank";
constexpr const char* kPoisoned = "rank 1 has failed: no more memory";
INSTANTIATE_TEST_SUITE_P(
    Ways, RankDeath,
    ::testing::Values(Death{"exit", 1, "rank 1", 0, ""},
                      Death{"kill", 137, "rank 1", 9, "EXIT CODE: 9"},
                      Death{"throw", 1, "no more memory", kAny, "no more memory"},
                      Death{"abort", 7, "", 7, "Abort(7)"}, Death{"hang", 1, kHung, 1, kHung},
                      Death{"poison", 1, kPoisoned, 1, kPoisoned}),
    [](const auto& death) { return std::string(death.param.way); });

void die(Communicator& comm, const std::string& way) {
  fmt::print(stderr, "pid {}\n", getpid());
  if (way == "exit") {
    _exit(0);
  } else if (way == "kill") {
    std::raise(SIGKILL);
  } else if (way == "throw") {
    fail("no more memory");
  } else if (way == "abort") {
    comm.abort(7);
  } else if (way == "hang") {
    std::this_thread::sleep_for(std::chrono::seconds(60));
  } else if (way == "poison") {
    comm.poison(Failure("no more memory"));
    std::this_thread::sleep_for(std::chrono::seconds(60));
  }
}

/// As in a program: errors end the scope, then the process exits with 1.
int run(const std::string& way) {
  try {
    MpiScope mpi({.timeout = 4});
    Communicator& comm = mpi.world();
    barrier(comm);
    try {
      if (comm.rank() == 1) {
        die(comm, way);
      }
      barrier(comm);
    } catch (const PeerLost& lost) {
      fmt::print(stderr, "{}\n", lost.what());
      mpi.abort(1);
    }
    if (way != "nothing") {
      fmt::print(stderr, "rank {} survived\n", comm.rank());
    }
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}

const ChildProcess kDie("--die", run);

}  // namespace
}  // namespace espalier::parallel::rank_death_test
