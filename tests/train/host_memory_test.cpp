// Limits of a machine, a cgroup and a Slurm job: which one counts, and that a run whose ranks need
// more is refused before its first step.
#include "src/train/memory/host_memory.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>

#include "tests/support/failure.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::host_memory_test {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using namespace testing;

constexpr size_t kNone = std::numeric_limits<size_t>::max();
constexpr size_t kKiB = 1024;

/// Sets variables, and unsets all that tell Slurm's limits, until its end.
class SlurmVariables {
 public:
  explicit SlurmVariables(const std::map<std::string, std::string>& set) {
    for (const char* name : kNames) {
      if (const char* value = std::getenv(name); value != nullptr) {
        before_[name] = value;
      }
      unsetenv(name);
    }
    for (const auto& [name, value] : set) {
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~SlurmVariables() {
    for (const char* name : kNames) {
      unsetenv(name);
    }
    for (const auto& [name, value] : before_) {
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  SlurmVariables(const SlurmVariables&) = delete;
  SlurmVariables& operator=(const SlurmVariables&) = delete;

 private:
  static constexpr std::array kNames{"SLURM_JOB_ID",       "SLURM_MEM_PER_NODE",
                                     "SLURM_MEM_PER_CPU",  "SLURM_MEM_PER_GPU",
                                     "SLURM_CPUS_ON_NODE", "SLURM_GPUS_ON_NODE"};
  std::map<std::string, std::string> before_;
};

/// A folder with these files, as the root of a machine.
fs::path machine(const fs::path& root, const std::map<std::string, std::string>& files) {
  for (const auto& [name, text] : files) {
    fs::create_directories((root / name).parent_path());
    std::ofstream(root / name) << text << '\n';
  }
  return root;
}

const std::string kMounts1 =
    "31 23 0:28 / /sys/fs/cgroup rw shared:4 - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:5 - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:6 - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";
const std::string kMounts2 = "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw";
const std::string kUnlimited1 = "9223372036854771712";

using HostMemory = RunTest;

TEST_F(HostMemory, MachineWithoutGroups) {
  const SlurmVariables none({});
  EXPECT_EQ(train::host_limit(dir / "missing").bytes, kNone);
  const fs::path root = machine(
      dir / "a", {{"proc/meminfo", "MemTotal: 80 kB\nMemAvailable: 10 kB\nSwapTotal: 20 kB"}});
  EXPECT_EQ(train::host_limit(root).bytes, 100 * kKiB);
  EXPECT_EQ(train::host_limit(root).name, "the machine's memory and swap");
  EXPECT_LT(train::host_limit("/").bytes, size_t{1} << 60U) << "of this machine";
}

TEST_F(HostMemory, SmallestLimitOfTheGroupsAboveInVersion1) {
  const SlurmVariables none({});
  const std::string memory = "sys/fs/cgroup/memory/";
  const fs::path root =
      machine(dir / "a", {{"proc/meminfo", "MemTotal: 1000 kB\nSwapTotal: 4 kB"},
                          {"proc/self/mountinfo", kMounts1},
                          {"proc/self/cgroup", "9:cpu:/other\n4:memory:/slurm/job_1/step_0\n0::/"},
                          {memory + "memory.limit_in_bytes", kUnlimited1},
                          {memory + "slurm/job_1/memory.limit_in_bytes", "200000"},
                          {memory + "slurm/job_1/step_0/memory.limit_in_bytes", kUnlimited1}});
  EXPECT_EQ(train::host_limit(root).bytes, 200000 + 4 * kKiB);
  EXPECT_THAT(train::host_limit(root).name, HasSubstr("slurm/job_1/memory.limit_in_bytes"));
  machine(root, {{memory + "slurm/job_1/memory.memsw.limit_in_bytes", "200001"}});
  EXPECT_EQ(train::host_limit(root).bytes, 200001U) << "of memory and swap";
  machine(root, {{memory + "memory.limit_in_bytes", "100000"}});
  EXPECT_EQ(train::host_limit(root).bytes, 100000 + 4 * kKiB) << "of the top";
  machine(root, {{"proc/meminfo", "MemTotal: 1 kB"}});
  EXPECT_EQ(train::host_limit(root).bytes, kKiB) << "of the machine";
}

TEST_F(HostMemory, SmallestLimitOfTheGroupsAboveInVersion2) {
  const SlurmVariables none({});
  const std::string job = "sys/fs/cgroup/system.slice/job_7/";
  const fs::path root = machine(dir / "a", {{"proc/meminfo", "MemTotal: 1000 kB\nSwapTotal: 9 kB"},
                                            {"proc/self/mountinfo", kMounts2},
                                            {"proc/self/cgroup", "0::/system.slice/job_7/task_0"},
                                            {job + "memory.max", "300000"},
                                            {job + "memory.swap.max", "0"},
                                            {job + "task_0/memory.max", "max"},
                                            {job + "task_0/memory.swap.max", "max"}});
  EXPECT_EQ(train::host_limit(root).bytes, 300000U);
  machine(root, {{job + "memory.swap.max", "max"}});
  EXPECT_EQ(train::host_limit(root).bytes, 300000 + 9 * kKiB);
  EXPECT_THAT(train::host_limit(root).name, HasSubstr("job_7/memory.max"));
}

/// Without a namespace of cgroups the paths are those outside the container.
TEST_F(HostMemory, ContainerThatSeesOnlyItsOwnGroup) {
  const SlurmVariables none({});
  const std::string top = "sys/fs/cgroup/memory/";
  const fs::path root = machine(
      dir / "a",
      {{"proc/meminfo", "MemTotal: 1000 kB"},
       {"proc/self/mountinfo", "1 2 0:1 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup memory"},
       {"proc/self/cgroup", "4:memory:/docker/x/inner"},
       {top + "memory.limit_in_bytes", "5000"},
       {top + "inner/memory.limit_in_bytes", "4000"}});
  EXPECT_EQ(train::host_limit(root).bytes, 4000U);
  for (const std::string group : {"/docker/x", "/docker/y", "/../y", "/"}) {
    machine(root, {{"proc/self/cgroup", "4:memory:" + group}});
    EXPECT_EQ(train::host_limit(root).bytes, 5000U) << group;
  }
}

TEST_F(HostMemory, DamagedFilesLimitNothing) {
  const SlurmVariables none({});
  for (const std::string text :
       {"", ":", "4:memory", "a b c", "1 2 3 4 5 - ", " - ", "- cgroup2"}) {
    const fs::path root = machine(
        dir / "a",
        {{"proc/meminfo", text}, {"proc/self/mountinfo", text}, {"proc/self/cgroup", text}});
    EXPECT_EQ(train::host_limit(root).bytes, kNone) << text;
  }
  for (const std::string text : {"", "many", ":", "-"}) {
    const fs::path root = machine(dir / "b", {{"proc/self/mountinfo", kMounts2},
                                              {"proc/self/cgroup", "0::/"},
                                              {"sys/fs/cgroup/memory.max", text}});
    EXPECT_EQ(train::host_limit(root).bytes, kNone) << text;
  }
}

TEST_F(HostMemory, SlurmJobs) {
  const auto limit = [&](const std::map<std::string, std::string>& variables) {
    const SlurmVariables set(variables);
    return train::host_limit(dir / "missing");
  };
  constexpr size_t kMiB = size_t{1} << 20U;
  EXPECT_EQ(limit({{"SLURM_MEM_PER_NODE", "100"}}).bytes, kNone) << "not in a job";
  EXPECT_EQ(limit({{"SLURM_JOB_ID", "1"}}).bytes, kNone);
  EXPECT_EQ(limit({{"SLURM_JOB_ID", "1"}, {"SLURM_MEM_PER_NODE", "0"}}).bytes, kNone);
  const auto node = limit({{"SLURM_JOB_ID", "1"}, {"SLURM_MEM_PER_NODE", "100"}});
  EXPECT_EQ(node.bytes, 100 * kMiB);
  EXPECT_THAT(node.name, HasSubstr("SLURM_MEM_PER_NODE"));
  EXPECT_THAT(node.fix, HasSubstr("--mem,"));
  EXPECT_EQ(
      limit({{"SLURM_JOB_ID", "1"}, {"SLURM_MEM_PER_CPU", "100"}, {"SLURM_CPUS_ON_NODE", "3"}})
          .bytes,
      300 * kMiB);
  EXPECT_EQ(limit({{"SLURM_JOB_ID", "1"}, {"SLURM_MEM_PER_CPU", "100"}}).bytes, kNone);
  EXPECT_EQ(
      limit({{"SLURM_JOB_ID", "1"}, {"SLURM_MEM_PER_GPU", "100"}, {"SLURM_GPUS_ON_NODE", "2"}})
          .bytes,
      200 * kMiB);
}

/// Runs `config` on a machine with so many KiB; returns the notes of rank 0.
std::string run_with(const io::Config& config, int ranks, size_t kib, const TempDir& dir) {
  const SlurmVariables none({});
  const fs::path root =
      machine(dir / "machine", {{"proc/meminfo", fmt::format("MemTotal: {} kB", kib)}});
  std::string notes;
  parallel::run_ranks(ranks, [&](parallel::Communicator& comm) {
    train::TrainerOptions options{.resume = "none", .system_root = root};
    if (comm.rank() == 0) {
      options.on_note = [&](const std::string& text) { notes += text + '\n'; };
    }
    train::Trainer trainer(config, comm, std::move(options));
    trainer.run();
  });
  return notes;
}

/// Need and copies of all ranks, in KiB, rounded up.
struct Need {
  size_t run = 0, with_copies = 0;
};
Need need_of(const io::Config& config, int ranks) {
  Need need;
  std::mutex mutex;
  parallel::run_ranks(ranks, [&](parallel::Communicator& comm) {
    const train::Trainer trainer(config, comm, {.resume = "none"});
    const train::MemoryPlan& plan = trainer.fit().plan;
    const std::scoped_lock lock(mutex);
    need.run += plan.needed();
    need.with_copies += plan.needed() + plan.checkpoint_copy;
  });
  return {.run = (need.run + kKiB - 1) / kKiB, .with_copies = (need.with_copies + kKiB - 1) / kKiB};
}

TEST_F(HostMemory, RunsThatNeedMoreAreRefusedBeforeTheFirstStep) {
  apply_settings(config, "train.steps=3 train.checkpoint_every=1");
  const Need need = need_of(config, 2);
  ASSERT_GT(need.with_copies, need.run + 1);
  const std::string message = failure_of([&] { run_with(config, 2, need.run - 1, dir); });
  EXPECT_THAT(message, AllOf(HasSubstr("the machine's memory and swap on "),
                             HasSubstr("the 2 ranks of the run there need"), HasSubstr("rank 0: "),
                             HasSubstr("activation "), HasSubstr("program and temporaries"),
                             HasSubstr("use more machines"), HasSubstr("train.memory_budget")));
  EXPECT_FALSE(fs::exists(fs::path(config.run.out) / "checkpoints/step-000001.h5"));
  EXPECT_THAT(run_with(config, 2, need.run, dir), HasSubstr("has no room for the"));
  EXPECT_THAT(run_with(config, 2, need.with_copies, dir),
              ::testing::Not(HasSubstr("has no room for the")));
}

TEST_F(HostMemory, StagesOfAPipelineCountTheirOwnNeed) {
  apply_settings(config,
                 "train.steps=2 parallel.pipeline=2 parallel.schedule=1f1b train.micro_batch=3 "
                 "model.width=64");
  // The plan that a trainer shows is that of the rank that needs most.
  const Need twice_the_most = need_of(config, 2);
  EXPECT_EQ(failure_of([&] { run_with(config, 2, twice_the_most.run, dir); }), "");
  EXPECT_THAT(failure_of([&] { run_with(config, 2, twice_the_most.run / 2, dir); }),
              HasSubstr("2 ranks"));
}

}  // namespace
}  // namespace espalier::host_memory_test
