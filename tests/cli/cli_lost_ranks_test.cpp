// Tests run the program on two ranks; one of them hangs, dies or is slow.
#include <signal.h>

#include <chrono>
#include <optional>
#include <thread>

#include "tests/support/job.h"

namespace espalier::cli_lost_ranks_test {
namespace {

const std::string kLong =
    "--set train.steps=1000000 --set train.checkpoint_every=0 "
    "--set train.eval_every=0 --set run.trace=false ";

const std::string kPipeline = "--set parallel.pipeline=2 --set train.micro_batch=1 ";

class LostRank : public ProgramTestWithParam {};

TEST_P(LostRank, ThatHangsIsNamedAndNothingIsLeft) {
  Job job(here, ranks_command(2, "train c.toml --set parallel.timeout_s=1 " + kLong + GetParam()));
  const std::vector<pid_t> ranks = job.ranks_after(3);
  kill(ranks[1], SIGSTOP);
  job.expect_end(20, 5);
  EXPECT_THAT(job.errors(), HasSubstr("espalier: error (rank 0): "));
  EXPECT_THAT(job.errors(), HasSubstr("rank 1"));
  expect_gone(ranks);
}

INSTANTIATE_TEST_SUITE_P(Ways, LostRank,
                         ::testing::Values("", "--set parallel.zero=1 --set train.dtype=bf16 ",
                                           kPipeline,
                                           kPipeline + "--set parallel.schedule=message-driven ",
                                           kPipeline + "--set parallel.schedule=async --set "
                                                       "parallel.weight_prediction=spectrain "
                                                       "--set train.eval_every=1 "  // drains
                                                       "--set train.eval_batches=1 "));

/// mpirun ends the ranks that are left, whatever they do.
class DeadRank : public ProgramTestWithParam {};

TEST_P(DeadRank, EndsTheOthers) {
  Job job(here, ranks_command(2, "train c.toml --set parallel.timeout_s=5 " + GetParam() + kLong));
  const std::vector<pid_t> ranks = job.ranks_after(3);
  kill(ranks[0], SIGKILL);
  const std::optional<int> code = job.wait(20);
  ASSERT_TRUE(code.has_value()) << "still running\n" << job.errors();
  EXPECT_NE(*code, 0);
  expect_gone(ranks);
}

INSTANTIATE_TEST_SUITE_P(Ways, DeadRank, ::testing::Values("", kPipeline));

using CliLostRanks = ProgramTest;

TEST_F(CliLostRanks, TermSignalEndsTheStepAndSaves) {
  Job job(here, ranks_command(2, "train c.toml " + kLong));
  const std::vector<pid_t> ranks = job.ranks_after(3);
  kill(ranks[1], SIGTERM);  // one rank is enough: all ranks agree to stop
  job.expect_end(30, 4);
  expect_gone(ranks);
  const auto steps = here.curve("run", "loss").size();
  EXPECT_EQ(here.summary("run")["steps"], steps);
  EXPECT_FALSE(here.summary("run")["finished"].get<bool>());
  // The checkpoint of exactly that step exists, is complete, and can be resumed.
  const std::string last = fmt::format("run/checkpoints/step-{:06}.h5", steps);
  here.ok("inspect " + last);
  here.ok(fmt::format("train c.toml --resume auto {} --steps {}", kLong, steps + 2));
  EXPECT_EQ(here.curve("run", "loss").size(), steps + 2);
}

TEST_F(CliLostRanks, ASlowDiskIsNoLostRank) {
  const std::string slow_disk =
      std::filesystem::canonical("/proc/self/exe").parent_path() / "libespalier_slow_disk.so";
  here.shell_ok(fmt::format(
      "timeout 120 '{}/scripts/mpirun.sh' 2 env SLOW_DISK_SECONDS=1.2 LD_PRELOAD='{}' {} train "
      "c.toml --set parallel.timeout_s=1 --set train.checkpoint_every=0",
      ESPALIER_SOURCE_DIR, slow_disk, ESPALIER_PROGRAM));
  EXPECT_TRUE(here.summary("run")["finished"].get<bool>());
  here.ok("inspect " + kLast);
}

TEST_F(CliLostRanks, ARankThatIsStoppedInTheStartIsNamed) {
  for (const int milliseconds : {20, 200}) {
    const Workplace fresh;
    Job job(fresh, ranks_command(2, "train c.toml --set parallel.timeout_s=2 " + kLong));
    wait_for([&] { return job.ranks().size() == 2; }, 20);
    const std::vector<pid_t> ranks = job.ranks();
    ASSERT_EQ(ranks.size(), 2U);
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    kill(ranks[1], SIGSTOP);
    const std::optional<int> code = job.wait(30);
    ASSERT_TRUE(code.has_value()) << "still running\n" << job.errors();
    EXPECT_NE(*code, 0);
    EXPECT_THAT(job.errors(), HasSubstr("rank 1"));
    expect_gone(ranks);
  }
}

TEST_F(CliLostRanks, AJobThatIsSuspendedGoesOn) {
  Job job(here, ranks_command(2,
                              "train c.toml --set train.steps=60 --set parallel.timeout_s=1 "
                              "--set train.checkpoint_every=0 --set model.context=16"));
  const std::vector<pid_t> ranks = job.ranks_after(3);
  for (const int signal : {SIGSTOP, SIGCONT}) {
    for (const pid_t rank : ranks) {
      kill(rank, signal);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(signal == SIGSTOP ? 1500 : 0));
  }
  job.expect_end(60, 0);
  EXPECT_EQ(here.curve("run", "loss").size(), 60U);
}

}  // namespace
}  // namespace espalier::cli_lost_ranks_test
