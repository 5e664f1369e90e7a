// The real program while a checkpoint is written beside the training to a slow disk: signals end it
// as at any other moment.
#include <signal.h>

#include <string>

#include "tests/support/job.h"

namespace espalier::cli_background_test {
namespace {

namespace fs = std::filesystem;

/// Without end, with a checkpoint every 5 steps.
std::string train_on_a_slow_disk(int ranks) {
  const std::string disk =
      fs::canonical("/proc/self/exe").parent_path() / "libespalier_slow_disk.so";
  return fmt::format(
      "'{}/scripts/mpirun.sh' {} env SLOW_DISK_SECONDS=0.5 LD_PRELOAD='{}' {} train c.toml --set "
      "train.steps=1000000 --set train.eval_every=0 --set train.keep_checkpoints=1000 --set "
      "run.trace=false",
      ESPALIER_SOURCE_DIR, ranks, disk, ESPALIER_PROGRAM);
}

/// Names in the folder of checkpoints, sorted, that have this end.
std::vector<std::string> names(const Workplace& here, const std::string& end) {
  std::vector<std::string> found;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(here / "run/checkpoints", none)) {
    const std::string name = entry.path().filename().string();
    if (end == ".tmp" ? name.find(".tmp-") != name.npos : name.ends_with(end)) {
      found.push_back(name);
    }
  }
  std::ranges::sort(found);
  return found;
}

/// Waits until one checkpoint is saved, another one is being written, and steps go on meanwhile.
void wait_for_a_write(const Workplace& here, Job& job) {
  ASSERT_TRUE(
      wait_for([&] { return !names(here, ".h5").empty() && !names(here, ".tmp").empty(); }, 60))
      << job.errors();
  const auto steps = std::ranges::count(here.read("run/metrics.jsonl"), '\n');
  ASSERT_TRUE(job.wait_for_steps(static_cast<size_t>(steps) + 1)) << job.errors();
}

using CliBackground = ProgramTest;

TEST_F(CliBackground, AKillDuringAWriteLeavesTheCheckpointBefore) {
  {
    Job job(here, train_on_a_slow_disk(2));
    wait_for_a_write(here, job);
    const std::vector<pid_t> ranks = job.ranks();
    ASSERT_EQ(ranks.size(), 2U);
    for (const pid_t rank : ranks) {
      kill(rank, SIGKILL);
    }
    job.wait(20);
    expect_gone(ranks);
  }
  EXPECT_EQ(names(here, ".tmp").size(), 1U);
  const std::string newest = names(here, ".h5").back();
  const int64_t next = std::stoll(newest.substr(std::string("step-").size())) + 1;
  EXPECT_THAT(here.ok(fmt::format("train c.toml --resume auto --steps {}", next)).err,
              HasSubstr("resumed from run/checkpoints/" + newest));
  EXPECT_TRUE(names(here, ".tmp").empty());
}

TEST_F(CliBackground, ASignalDuringAWriteSavesBoth) {
  Job job(here, train_on_a_slow_disk(2));
  wait_for_a_write(here, job);
  const std::string writing = names(here, ".tmp").front();
  const std::vector<pid_t> ranks = job.ranks();
  ASSERT_EQ(ranks.size(), 2U);
  kill(ranks[1], SIGTERM);
  job.expect_end(60, 4);
  expect_gone(ranks);
  const std::vector<std::string> saved = names(here, ".h5");
  EXPECT_NE(std::ranges::find(saved, writing.substr(0, writing.find(".tmp-"))), saved.end());
  EXPECT_EQ(saved.back(), fmt::format("step-{:06}.h5", here.curve("run", "loss").size()));
  EXPECT_TRUE(names(here, ".tmp").empty());
  for (const std::string& name : saved) {
    here.ok("inspect run/checkpoints/" + name);
  }
}

}  // namespace
}  // namespace espalier::cli_background_test
