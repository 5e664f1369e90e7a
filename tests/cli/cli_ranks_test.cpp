// The real program on two ranks: the same curve as on one, and faults of one rank that end all
// ranks.
#include <signal.h>

#include <chrono>
#include <cmath>
#include <optional>
#include <thread>

#include "tests/support/program.h"

namespace espalier {
namespace {

using Clock = std::chrono::steady_clock;

Ran run_ranks(const Workplace& here, int ranks, const std::string& arguments) {
  return here.shell(fmt::format("timeout 120 '{}/scripts/mpirun.sh' {} {} {}", ESPALIER_SOURCE_DIR,
                                ranks, ESPALIER_PROGRAM, arguments));
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// A job of two ranks that runs during the test. The destructor ends it.
class Job {
 public:
  Job(const Workplace& here, const std::string& arguments) : here_(here) {
    child_ = fork();
    if (child_ == 0) {
      const std::string line = "cd '" + (here / ".").string() +
                               "' && exec '" ESPALIER_SOURCE_DIR
                               "/scripts/mpirun.sh' 2 " ESPALIER_PROGRAM " " +
                               arguments + " >.job-out 2>.job-err";
      execl("/bin/sh", "sh", "-c", line.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
  }
  ~Job() {
    const std::vector<pid_t> left = ranks();
    if (!ended_) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
    for (const pid_t pid : left) {
      kill(pid, SIGKILL);
    }
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Processes of the program, in rank order: mpirun's children.
  std::vector<pid_t> ranks() const {
    std::vector<pid_t> found;
    const std::string tasks = "/proc/" + std::to_string(child_) + "/task";
    std::error_code gone;
    for (const auto& task : std::filesystem::directory_iterator(tasks, gone)) {
      std::ifstream children(task.path() / "children");
      for (pid_t pid = 0; children >> pid;) {
        found.push_back(pid);
      }
    }
    std::ranges::sort(found);
    return found;
  }
  /// Waits until the run has done `steps` steps; false: it ended or timed out.
  bool wait_for_steps(size_t steps) {
    const auto begin = Clock::now();
    while (seconds_since(begin) < 60 && !poll()) {
      const std::string metrics = here_.read("run/metrics.jsonl");
      if (static_cast<size_t>(std::ranges::count(metrics, '\n')) >= steps) {
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
  }
  /// Waits for the end and returns the exit code; empty after `seconds`.
  std::optional<int> wait(double seconds) {
    const auto begin = Clock::now();
    while (!poll() && seconds_since(begin) < seconds) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return ended_;
  }
  std::string errors() const { return here_.read(".job-err"); }

 private:
  bool poll() {
    int status = 0;
    if (!ended_ && waitpid(child_, &status, WNOHANG) == child_) {
      ended_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return ended_.has_value();
  }

  const Workplace& here_;
  pid_t child_ = 0;
  std::optional<int> ended_;
};

bool alive(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/stat");
  std::string word;
  char state = 'X';
  status >> word >> word >> state;
  return status.good() && state != 'Z' && state != 'X';
}

/// Checks that all processes end within a few seconds.
void expect_gone(const std::vector<pid_t>& pids) {
  const auto begin = Clock::now();
  while (std::ranges::any_of(pids, alive) && seconds_since(begin) < 5) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  for (const pid_t pid : pids) {
    EXPECT_FALSE(alive(pid)) << pid;
  }
}

const std::string kLong =
    "--set train.steps=1000000 --set train.checkpoint_every=0 "
    "--set train.eval_every=0 --set run.trace=false ";

TEST(CliRanks, TwoRanksTrainLikeOne) {
  const Workplace here;
  expect_code(here.run("train c.toml --out one"), 0);
  expect_code(run_ranks(here, 2, "train c.toml --out two"), 0);
  const std::vector<double> one = here.curve("one", "loss");
  const std::vector<double> two = here.curve("two", "loss");
  ASSERT_EQ(one.size(), two.size());
  // Same samples, same masks; sums of gradients differ only in order: fp32 rounding over 20 steps.
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(one[i], two[i], 1e-4) << "step " << i + 1;
  }
  EXPECT_EQ(here.summary("two")["ranks"], 2);
  EXPECT_GT(here.curve("two", "allreduce_bytes").front(), 0);
  // After the pruning only kept elements are sent.
  EXPECT_LT(here.curve("two", "allreduce_bytes").back(),
            0.8 * here.curve("two", "allreduce_bytes").front());
  // With the same number of ranks: the same bits. Another number of ranks can resume the run.
  expect_code(run_ranks(here, 2, "train c.toml --out half --steps 9"), 0);
  expect_code(here.run("train c.toml --out half --resume auto --steps 12"), 0);
  expect_code(run_ranks(here, 2, "train c.toml --out half --resume auto"), 0);
  const std::vector<double> half = here.curve("half", "loss");
  ASSERT_EQ(half.size(), two.size());
  for (size_t i = 0; i < half.size(); ++i) {
    EXPECT_NEAR(half[i], two[i], i < 9 ? 0 : 1e-4) << "step " << i + 1;
  }
}

TEST(CliRanks, WithZeroTheCurveStaysAndARankHoldsLess) {
  const Workplace here;
  const std::string bf16 = "train c.toml --set train.dtype=bf16 --set train.global_batch=6 ";
  expect_code(run_ranks(here, 3, bf16 + "--out whole"), 0);
  expect_code(run_ranks(here, 3, bf16 + "--set parallel.zero=1 --out shared"), 0);
  for (const char* key : {"loss", "grad_norm", "val_loss"}) {
    EXPECT_EQ(here.curve("shared", key), here.curve("whole", key)) << key;
  }
  const auto moment = [&](const std::string& run, int rank) {
    return here.summary(run)["memory"]["ranks"][rank]["moment"]["bytes"].get<double>();
  };
  for (const int rank : {0, 1, 2}) {
    EXPECT_NEAR(moment("shared", rank) * 3 / moment("whole", rank), 1, 0.1) << rank;
  }
  // Another number of ranks resumes the sharded checkpoint of three ranks.
  expect_code(here.run(bf16 + "--out more --resume shared/checkpoints/step-000015.h5"), 0);
  EXPECT_NEAR(here.curve("more", "loss").back(), here.curve("whole", "loss").back(), 2e-2);
}

TEST(CliRanks, ErrorsComeOnceAndEndAllRanks) {
  const Workplace here;
  for (const auto& [arguments, words] : std::vector<std::pair<std::string, std::string>>{
           {"train c.toml --set train.global_batch=7",
            "train.global_batch = 7 cannot be divided among 2 ranks"},
           {"train c.toml --set parallel.pipeline=3",
            "parallel.pipeline = 3 does not divide 2 ranks"},
           {"train c.toml --set train.stepz=3", "did you mean \"steps\""},
           {"train c.toml --set 'data.train=[\"none.txt\"]'", "none.txt cannot be opened"},
           {"train c.toml --resume none.h5", "none.h5"}}) {
    const Ran ran = run_ranks(here, 2, arguments);
    expect_code(ran, 1);
    const size_t first = ran.err.find(words);
    EXPECT_NE(first, std::string::npos) << ran.err;
    EXPECT_EQ(ran.err.find(words, first + 1), std::string::npos) << "said twice:\n" << ran.err;
  }
}

TEST(CliRanks, TermSignalEndsTheStepAndSaves) {
  const Workplace here;
  Job job(here, "train c.toml " + kLong);
  ASSERT_TRUE(job.wait_for_steps(3)) << job.errors();
  const std::vector<pid_t> ranks = job.ranks();
  ASSERT_EQ(ranks.size(), 2U);
  kill(ranks[1], SIGTERM);  // one rank is enough: all ranks agree to stop
  const std::optional<int> code = job.wait(30);
  ASSERT_TRUE(code.has_value()) << job.errors();
  EXPECT_EQ(*code, 0) << job.errors();
  expect_gone(ranks);
  const auto steps = here.curve("run", "loss").size();
  EXPECT_EQ(here.summary("run")["steps"], steps);
  EXPECT_FALSE(here.summary("run")["finished"].get<bool>());
  // The checkpoint of exactly that step exists, is complete, and can be resumed.
  const std::string last = fmt::format("run/checkpoints/step-{:06}.h5", steps);
  expect_code(here.run("inspect " + last), 0);
  expect_code(here.run(fmt::format("train c.toml --resume auto {} --steps {}", kLong, steps + 2)),
              0);
  EXPECT_EQ(here.curve("run", "loss").size(), steps + 2);
}

class LostRank : public ::testing::TestWithParam<std::string> {};

TEST_P(LostRank, ThatHangsIsNamedAndNothingIsLeft) {
  const Workplace here;
  Job job(here, "train c.toml --set parallel.timeout_s=3 " + GetParam() + kLong);
  ASSERT_TRUE(job.wait_for_steps(3)) << job.errors();
  const std::vector<pid_t> ranks = job.ranks();
  ASSERT_EQ(ranks.size(), 2U);
  kill(ranks[1], SIGSTOP);
  const std::optional<int> code = job.wait(20);
  ASSERT_TRUE(code.has_value()) << "still running\n" << job.errors();
  EXPECT_EQ(*code, 1) << job.errors();
  EXPECT_NE(job.errors().find("espalier: error (rank 0): "), std::string::npos) << job.errors();
  EXPECT_NE(job.errors().find("rank 1"), std::string::npos) << job.errors();
  expect_gone(ranks);
}

TEST_P(LostRank, ThatDiesEndsTheOthers) {
  const Workplace here;
  Job job(here, "train c.toml --set parallel.timeout_s=5 " + GetParam() + kLong);
  ASSERT_TRUE(job.wait_for_steps(3)) << job.errors();
  const std::vector<pid_t> ranks = job.ranks();
  ASSERT_EQ(ranks.size(), 2U);
  kill(ranks[0], SIGKILL);
  const std::optional<int> code = job.wait(20);
  ASSERT_TRUE(code.has_value()) << "still running\n" << job.errors();
  EXPECT_NE(*code, 0);
  expect_gone(ranks);
}

const std::string kPipeline = "--set parallel.pipeline=2 --set train.micro_batch=1 ";

INSTANTIATE_TEST_SUITE_P(Ways, LostRank,
                         ::testing::Values("", "--set parallel.zero=1 --set train.dtype=bf16 ",
                                           kPipeline,
                                           kPipeline + "--set parallel.schedule=message-driven ",
                                           kPipeline + "--set parallel.schedule=async --set "
                                                       "parallel.weight_prediction=spectrain "
                                                       "--set parallel.drain_every=1 "));

TEST(CliRanks, AnAsynchronousPipelineTrainsLikeItsInjector) {
  const Workplace here;
  const std::string train =
      "train c.toml --set train.global_batch=8 --set parallel.schedule=async --set "
      "parallel.weight_prediction=spectrain --set parallel.partition=[1,3] ";
  expect_code(here.run(train + "--set parallel.delay_stages=2 --out one"), 0);
  expect_code(run_ranks(here, 2, train + "--set parallel.pipeline=2 --out two"), 0);
  EXPECT_EQ(here.curve("two", "loss"), here.curve("one", "loss"));
  EXPECT_EQ(here.curve("two", "val_loss"), here.curve("one", "val_loss"));
  for (const std::string run : {"one", "two"}) {
    const auto delays = here.summary(run)["pipeline"]["delays"];
    ASSERT_EQ(delays.size(), 2U);
    EXPECT_EQ(delays[0]["most"], 1);
    EXPECT_GT(delays[0]["mean"].get<double>(), 0.5);
    EXPECT_EQ(delays[1]["most"], 0);
  }
  EXPECT_TRUE(std::filesystem::exists(here / "two/pipeline-measured.svg"));
}

TEST(CliRanks, APipelineTrainsLikeOneRank) {
  const Workplace here;
  const std::string train = "train c.toml --set train.global_batch=8 --set train.micro_batch=1 ";
  expect_code(here.run(train + "--out one"), 0);
  for (const std::string schedule : {"1f1b", "zb-v", "message-driven"}) {
    const std::string run = "run-" + schedule;
    expect_code(
        run_ranks(here, 2,
                  train + kPipeline + "--set parallel.schedule=" + schedule + " --out " + run),
        0);
    EXPECT_EQ(here.curve(run, "loss"), here.curve("one", "loss")) << schedule;
    EXPECT_EQ(here.curve(run, "val_loss"), here.curve("one", "val_loss")) << schedule;
    EXPECT_EQ(here.summary(run)["grid"]["pipeline"], 2);
    EXPECT_EQ(here.summary(run)["parameters"], here.summary("one")["parameters"]);
    EXPECT_EQ(here.summary(run)["kept_parameters"], here.summary("one")["kept_parameters"]);
    const double sent = here.curve(run, "p2p_bytes").front();
    EXPECT_GT(sent, 0);
    EXPECT_EQ(sent, here.curve(run, "p2p_bytes").back()) << "pruning does not change activations";
  }
  // Two stages of two replicas; then a single rank resumes.
  expect_code(run_ranks(here, 4, train + kPipeline + "--out grid --steps 9"), 0);
  expect_code(here.run(train + "--out grid --resume auto"), 0);
  const std::vector<double> grid = here.curve("grid", "loss");
  const std::vector<double> one = here.curve("one", "loss");
  ASSERT_EQ(grid.size(), one.size());
  for (size_t i = 0; i < grid.size(); ++i) {
    EXPECT_NEAR(grid[i], one[i], 1e-4) << "step " << i + 1;
  }
}

}  // namespace
}  // namespace espalier
