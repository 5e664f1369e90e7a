// A disk that fails, and memory that runs out, at each possible call of a run: the result is a
// Failure that may be retried (or std::bad_alloc), no reported checkpoint is lost, and the same
// command then completes the run with the bits of an undisturbed one.
//
// ESPALIER_FAULTS=N tries up to N places of each call (default: a sample of some seconds).
#include <cstdio>
#include <cstdlib>
#include <new>
#include <optional>
#include <utility>

#include "io/checkpoint/checkpoint.h"
#include "io/files/raw_file.h"
#include "src/train/checkpoint/run_directory.h"
#include "tests/support/failing_files.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"

namespace {

/// Allocations of this thread until one fails; 0: none does.
thread_local int64_t allocations_left = 0;

}  // namespace

// Not inlined: GCC would warn of `free` for memory of `new`.
[[gnu::noinline]] void* operator new(size_t bytes) {
  if (allocations_left > 0 && --allocations_left == 0) {
    throw std::bad_alloc();
  }
  if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) {
    return memory;
  }
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return allocations_left > 0 && --allocations_left == 0 ? nullptr
                                                         : std::malloc(bytes > 0 ? bytes : 1);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace espalier::testing::failing_files_test {
namespace {

namespace fs = std::filesystem;

/// A run of 4 steps with a checkpoint of each. In `folder` / "begun" it has done 3.
class FailingRun : public ::testing::Test {
 protected:
  void SetUp() override {
    config_ = tiny_config(folder_);
    config_.model.layers = config_.model.heads = 1;
    config_.model.width = config_.model.context = 8;
    config_.optimizer.kind = "sgd";  // few arrays: quick to save
    config_.train.global_batch = 2;
    config_.train.steps = 4;
    config_.train.checkpoint_every = 1;
    config_.train.keep_checkpoints = 2;
    config_.run.tensorboard = true;
    train("auto", 0);
    last_ = io::read_text(checkpoint(4), "checkpoint");
    train("none", 3);
    fs::rename(config_.run.out, folder_ / "begun");
  }

  fs::path checkpoint(int64_t step) const {
    return fs::path(config_.run.out) / "checkpoints" / io::checkpoint_name(step);
  }
  void begin_again() const {
    fs::remove_all(config_.run.out);
    fs::copy(folder_ / "begun", config_.run.out, fs::copy_options::recursive);
  }
  /// A call of `espalier train`; returns the step of the last checkpoint that it reported.
  int64_t train(const std::string& resume, int64_t stop) {
    const auto comm = parallel::self_communicator();
    train::TrainerOptions options{.resume = resume, .stop_after = stop, .background_thread = false};
    options.on_note = [this](const std::string& note) {
      if (note.starts_with("checkpoint ")) {
        reported_ = *io::checkpoint_step(note);
      }
    };
    train::Trainer(config_, *comm, std::move(options)).run();
    return reported_;
  }
  int64_t newest() const {
    const auto found = io::newest_intact_checkpoint(fs::path(config_.run.out) / "checkpoints").file;
    return found ? *io::checkpoint_step(*found) : 0;
  }
  /// Calls with a failure at `number`; then checks what is left, and completes the run.
  void expect_survives(const std::string& resume, Call call, int64_t number, int error) {
    SCOPED_TRACE(
        fmt::format("call {} number {}: {}", static_cast<int>(call), number, io::cause_of(error)));
    begin_again();
    reported_ = resume == "none" ? 0 : 2;
    {
      FailingFiles files(call, number, error);
      const io::FileSystemScope scope(files);
      try {
        train(resume, 0);
        ++unharmed_;
      } catch (const Failure& failure) {
        ++failed_;
        EXPECT_NE(error, EINTR) << failure.what();
        EXPECT_TRUE(failure.retryable()) << failure.what();
        EXPECT_THAT(failure.what(), HasSubstr(io::cause_of(error)));
      }
    }
    FailingFiles fast;
    const io::FileSystemScope scope(fast);
    ASSERT_GE(newest(), reported_);
    ASSERT_NO_THROW(train("auto", 0));
    ASSERT_TRUE(io::read_text(checkpoint(4), "checkpoint") == last_);
    ASSERT_EQ(io::read_metrics(fs::path(config_.run.out) / "metrics.jsonl").size(), 4U);
  }

  TempDir folder_;
  io::Config config_;
  std::string last_;  ///< the last checkpoint of an undisturbed run
  int64_t reported_ = 0;
  int failed_ = 0, unharmed_ = 0;
};

int64_t most_places() {
  const char* text = std::getenv("ESPALIER_FAULTS");
  return text == nullptr ? 6 : std::strtol(text, nullptr, 10);
}

TEST_F(FailingRun, EveryCallMayFail) {
  for (const std::string& resume : {checkpoint(2).string(), std::string("none")}) {
    begin_again();
    FailingFiles counted;
    {
      const io::FileSystemScope scope(counted);
      train(resume, 0);
    }
    const std::map<Call, std::vector<int>> errors{
        {kOpen, {EIO, EMFILE, EINTR}},  {kRead, {EIO, EINTR}},
        {kWrite, {EIO, ENOSPC, EINTR}}, {kResize, {EIO, ENOSPC, EINTR}},
        {kSync, {EIO, ENOSPC, EINTR}},  {kClose, {EIO, EINTR}},
        {kRename, {EIO, ENOSPC}},       {kUnlink, {EIO}},
        {kMakeFolder, {EIO, ENOSPC}}};
    for (const auto& [call, causes] : errors) {
      const int64_t calls = counted.calls(call);
      const int64_t stride = std::max<int64_t>(1, calls / most_places());
      EXPECT_GE(calls, call == kMakeFolder ? (resume == "none" ? 0 : 1) : 2) << call;
      for (int64_t number = 1; number <= calls; number += stride) {
        expect_survives(resume, call, number, causes[static_cast<size_t>(number) % causes.size()]);
        ASSERT_FALSE(HasFatalFailure());
      }
    }
  }
  std::printf("failed calls: %d, without harm: %d\n", failed_, unharmed_);
  EXPECT_GT(failed_, 40);
}

TEST_F(FailingRun, AFileSystemWithoutLocksIsNamed) {
  begin_again();
  FailingFiles files(kLock, 1, ENOLCK);
  const io::FileSystemScope scope(files);
  const auto comm = parallel::self_communicator();
  train::RunDirectory directory(config_.run.out, "auto", *comm);
  const auto notes = directory.take_notes();
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_THAT(notes[0], HasSubstr(".lock cannot be locked (No locks available)"));
}

TEST_F(FailingRun, ACheckpointThatCannotBeOpenedIsNotSkipped) {
  begin_again();
  FailingFiles files(kOpen, 1, EMFILE);
  const io::FileSystemScope scope(files);
  EXPECT_THROW(newest(), Failure);
  EXPECT_EQ(newest(), 3);
}

/// It may be damaged, or the disk failed once.
TEST_F(FailingRun, ACheckpointThatCannotBeReadIsSkipped) {
  begin_again();
  FailingFiles files(kRead, 1, EIO);
  const io::FileSystemScope scope(files);
  const auto found = io::newest_intact_checkpoint(checkpoint(2).parent_path());
  EXPECT_EQ(found.file, checkpoint(2));
  EXPECT_TRUE(found.unreadable);
  ASSERT_EQ(found.skipped.size(), 1U);
  EXPECT_THAT(found.skipped[0], HasSubstr(checkpoint(3).string()));
  EXPECT_THAT(found.skipped[0], HasSubstr("Input/output error"));
}

/// Allocations fail in its lifetime: the `number`-th one of this thread.
class FailingMemory {
 public:
  explicit FailingMemory(int64_t& number) : number_(number) { allocations_left = number; }
  ~FailingMemory() { number_ = std::exchange(allocations_left, 0); }
  FailingMemory(const FailingMemory&) = delete;
  FailingMemory& operator=(const FailingMemory&) = delete;

 private:
  int64_t& number_;  ///< of the next part
};

/// The file operations of a call of `espalier train` that resumes at step 3 and saves step 4; the
/// allocation `number` fails. Destructors of nlohmann::json allocate, and may not throw: parts that
/// use them are left out.
void one_save(const fs::path& root, const io::Config& config, int64_t& number) {
  const auto comm = parallel::self_communicator();
  std::vector<float> values(100, 0.5F);
  std::optional<train::RunDirectory> directory;
  {
    const FailingMemory failing(number);
    directory.emplace(root, "auto", *comm);
    require(io::checkpoint_step(*directory->resume_file()) == 3, "no intact checkpoint is skipped");
  }
  std::ofstream(directory->checkpoint_path(9)) << "of another branch";
  {
    const FailingMemory failing(number);
    require(!io::set_aside_checkpoints(directory->checkpoints(), 3).empty(), "one is set aside");
  }
  directory->begin(config, {}, 3);
  directory->write_metrics({{"step", 4}, {"loss", 1.5}});
  const FailingMemory failing(number);
  directory->sync_metrics();
  io::CheckpointWriter writer(directory->checkpoint_path(4));
  writer.write_meta({.step = 4, .config = "[train]\n"});
  const auto count = static_cast<int64_t>(values.size());
  const Tensor tensor(values.data(), DType::fp32, Shape{count});
  writer.write_parameter({.name = "a", .shape = {count}, .nnz = count, .values = tensor});
  writer.write_optimizer("a", "moment1", tensor);
  writer.commit();
  io::verify_written_checkpoint(directory->checkpoint_path(4));
  io::remove_old_checkpoints(directory->checkpoints(), 2);
  io::write_text_atomically(root / "summary.json", "{\"finished\": true}\n");
}

TEST_F(FailingRun, EveryAllocationMayFail) {
  FailingFiles fast;
  const io::FileSystemScope scope(fast);
  begin_again();
  constexpr int64_t kMany = int64_t{1} << 40;
  int64_t left = kMany;
  const std::string wrong = failure_of([&] { one_save(config_.run.out, config_, left); });
  const int64_t count = kMany - left;
  ASSERT_EQ(wrong, "");
  ASSERT_GT(count, 500);
  const int64_t stride = std::max<int64_t>(1, count / (20 * most_places()));
  int failed = 0;
  for (int64_t number = 1; number <= count; number += stride) {
    SCOPED_TRACE(fmt::format("allocation {} of {}", number, count));
    begin_again();
    left = number;
    try {
      one_save(config_.run.out, config_, left);
    } catch (const std::bad_alloc&) {
      ++failed;
    } catch (const Failure& failure) {
      ++failed;
      EXPECT_TRUE(failure.retryable()) << failure.what();
    }
    fs::remove(checkpoint(9));
    ASSERT_GE(newest(), 3);
    if (newest() == 3) {
      left = 0;
      ASSERT_NO_THROW(one_save(config_.run.out, config_, left));
    }
  }
  std::printf("failed allocations: %d of %lld\n", failed, static_cast<long long>(count));
  EXPECT_GT(failed, 100);
}

}  // namespace
}  // namespace espalier::testing::failing_files_test
