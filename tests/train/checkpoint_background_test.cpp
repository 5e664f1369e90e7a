// Checkpoints that are written while training goes on: the same bits as those that steps wait for,
// on any disk.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <thread>

#include "io/checkpoint/checkpoint.h"
#include "io/files/file_system.h"
#include "io/files/raw_file.h"
#include "src/train/checkpoint/checkpoint_save.h"
#include "src/train/memory/host_memory.h"
#include "tests/support/failure.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::testing::checkpoint_background_test {
namespace {

namespace fs = std::filesystem;

io::Config config_for(const TempDir& dir) {
  io::Config config = tiny_config(dir);
  apply_settings(config, "train.checkpoint_every=4 train.keep_checkpoints=9");
  return config;
}

std::string content(const fs::path& file) { return io::read_text(file, "checkpoint"); }

/// Files named `hidden.*` do not exist for ranks other than 0: their machines have other disks.
class DiskOfRankZero : public io::FileSystem {
 public:
  static inline thread_local bool t_other_machine = false;
  std::atomic<int> missed = 0;

  int open(const fs::path& path, int flags) override {
    if (t_other_machine && path.filename().string().starts_with("hidden.")) {
      ++missed;
      errno = ENOENT;
      return -1;
    }
    return FileSystem::open(path, flags);
  }
};

/// Saves the state of step 6 three times: at once, at once where only rank 0 sees the disk, and
/// from a copy that is written during later steps.
void expect_the_same_file(const io::Config& config, int ranks, const TempDir& dir) {
  const fs::path now = dir / "now.h5";
  const fs::path hidden = dir / "hidden.h5";
  const fs::path later = dir / "later.h5";
  DiskOfRankZero disk;
  const io::FileSystemScope scope(disk);
  parallel::run_ranks(ranks, [&](parallel::Communicator& comm) {
    train::Trainer* trainer = nullptr;
    train::Background background(true);
    std::optional<train::CheckpointSave> pending;
    train::TrainerOptions options{.resume = "none"};
    options.on_step = [&](const train::StepReport& report) {
      if (report.step == 6) {
        const train::RunProgress progress{.step = 6, .config = config};
        train::SaveOptions saving{.owners = trainer->plan().owners};
        train::save(now, trainer->stage().store(), progress, comm, saving);
        saving.copies = true;  // a rank that does not see the file copies nothing
        DiskOfRankZero::t_other_machine = comm.rank() > 0;
        train::save(hidden, trainer->stage().store(), progress, comm, saving);
        DiskOfRankZero::t_other_machine = false;
        pending.emplace(later, trainer->stage().store(), progress, comm, saving, background);
      } else if (report.step == 8) {
        pending->finish();
      }
    };
    train::Trainer made(config, comm, std::move(options));
    trainer = &made;
    made.run();
  });
  EXPECT_TRUE(content(now) == content(later));
  EXPECT_TRUE(content(now) == content(hidden));
  EXPECT_EQ(disk.missed, ranks - 1);
  EXPECT_GT(io::CheckpointReader(later).names().size(), 4U);
}

struct CheckpointBackground : RunTest {
  CheckpointBackground() { config = config_for(dir); }
};

TEST_F(CheckpointBackground, TheFileHasTheSameBits) {
  for (const auto& [ranks, settings] :
       {RanksWay{1, "prune"}, RanksWay{2, "eight_bits"}, RanksWay{4, "prune_sparse"},
        RanksWay{3, "prune_sparse parallel.zero=1 train.dtype=bf16"}, RanksWay{2, "stages:1f1b"},
        RanksWay{4, "stages:1f1b"},
        RanksWay{2, "parallel.codec=maxmin:4 parallel.error_feedback=true"}}) {
    SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, settings));
    config = config_for(dir);
    apply_settings(config, "train.checkpoint_every=-1 train.steps=8 " + settings);
    expect_the_same_file(config, ranks, dir);
  }
}

TEST_F(CheckpointBackground, ARunIsTheSameAndResumes) {
  move_masks(config);
  for (const int ranks : {1, 2}) {
    const Outcome copied = run(config, ranks);
    const auto metrics = metrics_without_times(config);
    EXPECT_THAT(names_in(dir / "run/checkpoints"),
                ElementsAre("step-000004.h5", "step-000008.h5", "step-000012.h5"));
    fs::remove(dir / "run/checkpoints/step-000012.h5");
    EXPECT_EQ(run(config, ranks, {.resume = "auto"}).values, copied.values);
    config.train.checkpoint_background = false;
    EXPECT_EQ(run(config, ranks), copied);
    EXPECT_EQ(metrics_without_times(config), metrics);
    config.train.checkpoint_background = true;
  }
}

/// Calls `sync` for files of checkpoints, from any thread.
class CheckpointDisk : public io::FileSystem {
 public:
  explicit CheckpointDisk(std::function<int(const std::string& name)> sync)
      : sync_(std::move(sync)) {}

  int open(const fs::path& path, int flags) override {
    const int file = FileSystem::open(path, flags);
    const std::string name = path.filename().string();
    const std::scoped_lock lock(mutex_);
    if (name.starts_with("step-") && name.find(".tmp-") != std::string::npos) {
      files_[file] = name.substr(0, name.find('.'));
    } else {
      files_.erase(file);
    }
    return file;
  }
  int sync(int file) override {
    std::string name;
    {
      const std::scoped_lock lock(mutex_);
      const auto found = files_.find(file);
      name = found == files_.end() ? "" : found->second;
    }
    const int error = name.empty() ? 0 : sync_(name);
    if (error != 0) {
      errno = error;
      return -1;
    }
    return 0;
  }

 private:
  std::function<int(const std::string&)> sync_;
  std::mutex mutex_;
  std::map<int, std::string> files_;
};

/// A gate that opens at most 30 s after a thread has come to it.
class Gate {
 public:
  void open() {
    const std::scoped_lock lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  /// False: it did not open in time.
  bool pass() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

TEST_F(CheckpointBackground, StepsDoNotWaitForTheDisk) {
  for (const int ranks : {1, 2}) {
    config = config_for(dir);
    Gate gate;
    std::atomic<bool> in_time = true;
    CheckpointDisk disk([&](const std::string& name) {
      if (name == "step-000004" && !gate.pass()) {
        in_time = false;
      }
      return 0;
    });
    const io::FileSystemScope scope(disk);
    std::vector<std::string> notes;
    parallel::run_ranks(ranks, [&](parallel::Communicator& comm) {
      train::TrainerOptions options{.resume = "none"};
      options.on_step = [&](const train::StepReport& report) {
        if (comm.rank() == 0 && report.step == 7) {
          EXPECT_FALSE(fs::exists(dir / "run/checkpoints/step-000004.h5"));
          EXPECT_THAT(notes, Not(::testing::Contains(HasSubstr("step-000004"))));
          gate.open();
        }
      };
      options.on_note = [&](const std::string& note) {
        if (comm.rank() == 0) {
          notes.push_back(note);
        }
      };
      train::Trainer(config, comm, std::move(options)).run();
    });
    EXPECT_TRUE(in_time) << "step 7 waited for the checkpoint of step 4";
    EXPECT_THAT(notes, ::testing::Contains(HasSubstr("step-000004.h5")));
    EXPECT_EQ(names_in(dir / "run/checkpoints").size(), 3U);
  }
}

TEST_F(CheckpointBackground, ADiskSlowerThanTheTimeoutIsNoLostRank) {
  apply_settings(config, "parallel.timeout_s=1 train.steps=8");
  CheckpointDisk disk([&](const std::string&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    return 0;
  });
  const io::FileSystemScope scope(disk);
  run(config, 2);  // the save of step 8, and the end, wait for the one before
  EXPECT_THAT(names_in(dir / "run/checkpoints"), ElementsAre("step-000004.h5", "step-000008.h5"));
}

TEST_F(CheckpointBackground, AFailedDiskEndsAllRanksAndLosesNothing) {
  const Outcome undisturbed = run(config, 2);
  for (const int failing : {1, 2, 3}) {  // the flushes of both ranks, and of the commit
    for (const int error : {EIO, ENOSPC}) {
      SCOPED_TRACE(fmt::format("flush {}", failing));
      fs::remove_all(dir / "run");
      std::array<std::string, 2> messages;
      {
        std::atomic<int> flushes = 0;
        CheckpointDisk disk([&](const std::string& name) {
          return name == "step-000008" && ++flushes == failing ? error : 0;
        });
        const io::FileSystemScope scope(disk);
        const auto train = [&](parallel::Communicator& comm) {
          try {
            train::Trainer(config, comm, {.resume = "none"}).run();
          } catch (const Failure& failure) {
            EXPECT_TRUE(failure.retryable());
            messages.at(static_cast<size_t>(comm.rank())) = failure.what();
            throw;
          }
        };
        EXPECT_THROW(parallel::run_ranks(2, train), Failure);
      }
      for (const std::string& message : messages) {
        EXPECT_THAT(message, HasSubstr(io::cause_of(error)));
        EXPECT_THAT(message, HasSubstr("no earlier checkpoint was touched"));
      }
      EXPECT_THAT(names_in(dir / "run/checkpoints"), ElementsAre("step-000004.h5"));
      EXPECT_EQ(run(config, 2, {.resume = "auto"}).values, undisturbed.values);
    }
  }
}

TEST_F(CheckpointBackground, ADivergedRunCompletesItsCheckpoint) {
  CheckpointDisk disk([](const std::string&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    return 0;
  });
  const io::FileSystemScope scope(disk);
  const std::string message = failure_of([&] {
    run_with(config, 2, [](train::Trainer& trainer, parallel::Communicator&, int64_t step) {
      if (step == 4) {
        sparse::Store& store = trainer.stage().store();
        const auto kept = static_cast<size_t>(store.parameters().front().kept());
        // finite, as all that a checkpoint holds, but products overflow
        store.set_values(store.parameters().front(), std::vector<float>(kept, 1e38F));
        trainer.data_parallel().clear_state_check();
      }
    });
  });
  EXPECT_THAT(message, HasSubstr("training has diverged"));
  EXPECT_THAT(message, HasSubstr("step-000004.h5"));
  EXPECT_THAT(names_in(dir / "run/checkpoints"), ElementsAre("step-000004.h5"));
}

TEST_F(CheckpointBackground, WithoutMemoryForTheCopyStepsWait) {
  prune_sparse(config);
  apply_settings(config, "pruning.method=random pruning.at_step=0");
  const train::Fit unlimited = fit_of(config);
  EXPECT_TRUE(unlimited.copies_checkpoints);
  const size_t copy = unlimited.plan.checkpoint_copy;

  config.train.memory_budget = fmt::format("{}B", unlimited.plan.needed() + copy);
  EXPECT_TRUE(fit_of(config).copies_checkpoints);
  std::string notes;
  run(config, 1, notes);
  EXPECT_THAT(notes, Not(HasSubstr("steps wait")));
  // The plan has the bytes of the file's arrays.
  size_t bytes = 0;
  for (const auto& dataset :
       io::CheckpointReader(dir / "run/checkpoints/step-000004.h5").verify_all()) {
    bytes += dataset.bytes;
  }
  EXPECT_GE(static_cast<double>(copy), 0.999 * static_cast<double>(bytes)) << "random indices";
  EXPECT_LE(static_cast<double>(copy), 1.05 * static_cast<double>(bytes));
  EXPECT_EQ(read_json(dir / "run/summary.json")["planned_peak"]["checkpoint_copy"], copy);

  config.train.memory_budget = fmt::format("{}B", unlimited.plan.needed() + copy - 1);
  EXPECT_FALSE(fit_of(config).copies_checkpoints);
  run(config, 1, notes);
  EXPECT_THAT(notes, HasSubstr("has no room for the"));
  EXPECT_EQ(names_in(dir / "run/checkpoints").size(), 3U);

  config.train.memory_budget.clear();
  config.train.checkpoint_every = 0;
  EXPECT_EQ(fit_of(config).plan.checkpoint_copy, 0U) << "the last checkpoint needs no copy";
}

/// A folder with a file proc/meminfo.
fs::path write_memory_info(const fs::path& root, const std::string& text) {
  fs::create_directories(root / "proc");
  std::ofstream(root / "proc/meminfo") << text;
  return root;
}

TEST_F(CheckpointBackground, CopiesTakeAtMostHalfOfTheFreeMemory) {
  const fs::path info = write_memory_info(
      dir / "info", "MemTotal:       8000 kB\nMemFree: 1 kB\nMemAvailable:   2000 kB\n");
  EXPECT_TRUE(train::has_memory_for_copies(1000 * 1024, 1, info));
  EXPECT_FALSE(train::has_memory_for_copies(1000 * 1024 + 1, 1, info));
  EXPECT_TRUE(train::has_memory_for_copies(250 * 1024, 4, info));
  EXPECT_FALSE(train::has_memory_for_copies(250 * 1024 + 1, 4, info));
  const fs::path other = write_memory_info(dir / "other", "MemTotal: 8000 kB\nMemFree: 1 kB\n");
  EXPECT_TRUE(train::has_memory_for_copies(SIZE_MAX, 1, other));
  EXPECT_TRUE(train::has_memory_for_copies(SIZE_MAX, 1, dir / "missing"));
  // The system's own: some memory is free, not all that an address can name.
  EXPECT_TRUE(train::has_memory_for_copies(1, 1, "/"));
  EXPECT_FALSE(train::has_memory_for_copies(size_t{1} << 60U, 1, "/"));
}

/// Notes the threads that write arrays of checkpoints.
class WritingThreads : public io::FileSystem {
 public:
  ssize_t write(int file, const void* data, size_t bytes, uint64_t offset) override {
    if (bytes > 10000) {  // not the metadata
      const std::scoped_lock lock(mutex_);
      threads_.insert(std::this_thread::get_id());
    }
    return FileSystem::write(file, data, bytes, offset);
  }
  const std::set<std::thread::id>& threads() const { return threads_; }

 private:
  std::mutex mutex_;
  std::set<std::thread::id> threads_;
};

/// Memory may be short in the view of one rank alone.
TEST_F(CheckpointBackground, WithoutMemoryOnOneRankNoneCopies) {
  const Outcome copied = run(config, 2);
  const fs::path little = write_memory_info(dir / "little", "MemAvailable: 1 kB\n");
  const fs::path much = write_memory_info(dir / "much", "MemAvailable: 1000000000 kB\n");
  WritingThreads files;
  std::set<std::thread::id> ranks;
  std::mutex mutex;
  {
    const io::FileSystemScope scope(files);
    parallel::run_ranks(2, [&](parallel::Communicator& comm) {
      {
        const std::scoped_lock lock(mutex);
        ranks.insert(std::this_thread::get_id());
      }
      train::Trainer trainer(config, comm,
                             {.resume = "none", .system_root = comm.rank() == 1 ? little : much});
      trainer.run();
      const Outcome waited = outcome_of(trainer);
      EXPECT_EQ(waited.values, copied.values);
    });
  }
  EXPECT_THAT(names_in(dir / "run/checkpoints"),
              ElementsAre("step-000004.h5", "step-000008.h5", "step-000012.h5"));
  // Arrays are written by ranks; the thread in the background has the rest.
  EXPECT_FALSE(files.threads().empty());
  EXPECT_TRUE(std::ranges::includes(ranks, files.threads()));
}

TEST(Background, TasksRunInOrderOneAtATime) {
  for (const bool has_thread : {true, false}) {
    train::Background background(has_thread);
    std::vector<int> order;
    for (int i = 0; i < 100; ++i) {
      background.add([&order, i] { order.push_back(i); });
    }
    EXPECT_TRUE(has_thread || !background.done());
    background.finish();
    EXPECT_TRUE(background.done());
    std::vector<int> all(100);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(order, all);
  }
}

TEST(Background, AnErrorDropsLaterTasks) {
  for (const bool has_thread : {true, false}) {
    train::Background background(has_thread);
    int ran = 0;
    background.add([] { throw std::bad_alloc(); });
    background.add([&ran] { ++ran; });
    EXPECT_THROW(background.finish(), std::bad_alloc);
    EXPECT_EQ(ran, 0);
    background.add([&ran] { ++ran; });
    background.finish();
    EXPECT_EQ(ran, 1);
  }
}

TEST(Background, TheCallerDoesTheWorkOfAThreadThatIsBusy) {
  Gate begun, gate;
  train::Background background(true);
  background.add([&] {
    begun.open();
    gate.pass();
  });
  bool ran = false;
  background.add([&ran] { ran = true; });
  ASSERT_TRUE(begun.pass());
  EXPECT_FALSE(background.done());
  std::thread opens([&gate] { gate.open(); });
  background.finish();
  opens.join();
  EXPECT_TRUE(ran);
  bool dropped = true;
  Gate again;
  background.add([&again] { again.pass(); });
  background.add([&dropped] { dropped = false; });
  std::thread opens_again([&again] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    again.open();
  });
  background.cancel();
  opens_again.join();
  EXPECT_TRUE(dropped);
  EXPECT_TRUE(background.done());
}

}  // namespace
}  // namespace espalier::testing::checkpoint_background_test
