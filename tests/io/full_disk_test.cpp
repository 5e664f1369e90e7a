// A disk that fills up at each possible point while a checkpoint is written. Expected: a Failure
// that says so, the earlier checkpoint unchanged, no temporary file, and a process that exits
// normally.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "io/checkpoint/checkpoint.h"
#include "io/run/event_file.h"
#include "io/run/metrics.h"
#include "src/core/error.h"
#include "tests/support/support.h"

namespace espalier::io::full_disk_test {
namespace {

namespace fs = std::filesystem;

/// During its lifetime files of this process cannot grow beyond `bytes`: writes fail with EFBIG.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

void write_checkpoint(const fs::path& path, int64_t step, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count), static_cast<float>(step));
  const Tensor tensor(values.data(), DType::fp32, Shape{count});
  CheckpointWriter writer(path);
  writer.write_meta({.step = step, .config = std::string(2000, '#')});
  for (const char* name : {"a", "b", "c"}) {
    writer.write_parameter({.name = name, .shape = {count}, .nnz = count, .values = tensor});
    writer.write_optimizer(name, "moment1", tensor);
  }
  writer.commit();
}

/// Empty if the checkpoint was written.
std::string failure_of_write(const fs::path& path, int64_t step, int64_t count) {
  try {
    write_checkpoint(path, step, count);
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "";
}

/// Runs `body` in a child process that exits normally (with HDF5's exit handlers). Returns its exit
/// code; -1 if a signal killed it, for example the alarm.
int exit_code_of(const std::function<int()>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    std::exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class FullDiskTest : public ::testing::Test {
 protected:
  int files() const { return static_cast<int>(std::distance(fs::directory_iterator(folder_), {})); }

  const testing::TempDir folder_;
  const fs::path path_ = folder_ / "step-000007.h5";
};

TEST_F(FullDiskTest, AtEveryPlaceInSmallAndLargeCheckpoints) {
  for (const int64_t count : {int64_t{10}, int64_t{100'000}}) {
    write_checkpoint(path_, 7, count);
    const auto size = fs::file_size(path_);
    const auto step = std::max<uintmax_t>(1, size / 150);
    int failed = 0;
    for (uintmax_t limit = 0; limit < size + step; limit += step) {
      std::string message;
      {
        const FileSizeLimit limited(limit);
        message = failure_of_write(path_, 8, count);
      }
      ASSERT_EQ(files(), 1) << limit;
      ASSERT_EQ(message.empty(), limit >= size) << limit << " of " << size;
      ASSERT_EQ(CheckpointReader(path_).meta().step, message.empty() ? 8 : 7);
      if (!message.empty()) {
        ++failed;
        ASSERT_THAT(message, HasSubstr(path_.string()));
        ASSERT_THAT(message, HasSubstr("File too large"));
        ASSERT_THAT(message, HasSubstr("no earlier checkpoint was touched"));
      }
    }
    EXPECT_GE(failed, 140);
    for (const auto& row : CheckpointReader(path_).verify_all()) {
      EXPECT_TRUE(row.ok) << row.error;
    }
  }
}

TEST_F(FullDiskTest, TheProcessStillEndsByItself) {
  for (const rlim_t limit : {0, 1000, 3000, 6000, 20'000}) {
    const int code = exit_code_of([&] {
      const FileSizeLimit limited(limit);
      return failure_of_write(path_, 8, 10'000).empty() ? 1 : 0;
    });
    EXPECT_EQ(code, 0) << limit;
  }
  EXPECT_EQ(files(), 0);
}

/// Enters a namespace in which an ordinary user may mount; user ids map to themselves.
bool unshare_as_user() {
  const auto user = ::getuid();
  const auto group = ::getgid();
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
    return false;
  }
  std::ofstream("/proc/self/setgroups") << "deny";
  std::ofstream("/proc/self/uid_map") << fmt::format("{0} {0} 1", user);
  std::ofstream("/proc/self/gid_map") << fmt::format("{0} {0} 1", group);
  return true;
}

/// Mounts a small file system, visible to this process only. False where that is not permitted.
bool mount_small(const fs::path& folder) {
  const bool apart = ::unshare(CLONE_NEWNS) == 0 || unshare_as_user();
  return apart && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("none", folder.c_str(), "tmpfs", 0, "size=1m") == 0;
}

TEST_F(FullDiskTest, AFullFileSystem) {
  constexpr int kNotAllowed = 77;
  const int code = exit_code_of([&] {
    if (!mount_small(folder_)) {
      return kNotAllowed;
    }
    write_checkpoint(path_, 7, 10'000);  // 240 kB; then one that does not fit
    const std::string message = failure_of_write(path_, 8, 50'000);
    const bool told = message.find("No space left on device") != std::string::npos;
    const bool kept = files() == 1 && CheckpointReader(path_).meta().step == 7;
    if (!told || !kept) {
      std::fprintf(stderr, "reported: %s\n", message.c_str());
    }
    return told && kept ? 0 : 1;
  });
  if (code == kNotAllowed) {
    GTEST_SKIP() << "no right to mount a file system here";
  }
  EXPECT_EQ(code, 0);
}

TEST_F(FullDiskTest, TextFilesAreWholeOrAsBefore) {
  const fs::path path = folder_ / "summary.json";
  write_text_atomically(path, "old");
  {
    const FileSizeLimit limited(1000);
    EXPECT_THROW(write_text_atomically(path, std::string(2000, 'x')), Failure);
    MetricsWriter metrics(folder_ / "metrics.jsonl");
    EXPECT_THROW(metrics.write({{"step", 1}, {"text", std::string(2000, 'x')}}), Failure);
    EventWriter events(folder_ / "events", 1);
    EXPECT_THROW(events.write(1, std::string(2000, 'x')), Failure);
  }
  EXPECT_EQ(fs::file_size(path), 3U);
  EXPECT_EQ(files(), 3);
  EXPECT_TRUE(read_metrics(folder_ / "metrics.jsonl").empty()) << "the torn line is ignored";
}

}  // namespace
}  // namespace espalier::io::full_disk_test
