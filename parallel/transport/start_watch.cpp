#include "parallel/transport/start_watch.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "parallel/transport/launcher.h"
#include "src/core/trace.h"

namespace espalier::parallel {
namespace {

int64_t now_ms() { return static_cast<int64_t>(now_seconds() * 1e3); }

}  // namespace

StartWatch::StartWatch(double timeout, std::function<void(const std::string&)> on_hang)
    : timeout_(std::max(timeout, kShortest)), on_hang_(std::move(on_hang)) {
  if (on_hang_) {
    open_roll();
    watchdog_.emplace(
        timeout_, [this] { report(); },
        [this] {
          if (!roll_.empty()) {
            roll_[static_cast<size_t>(rank_)] = now_ms();
          }
        });
  }
}

StartWatch::~StartWatch() {
  watchdog_.reset();
  if (!roll_.empty()) {
    ::munmap(roll_.data(), roll_.size_bytes());
    ::unlink(path_.c_str());  // all ranks have opened it: MPI starts together
  }
}

void StartWatch::open_roll() {
  const Launch launch = find_launch().value_or(Launch());
  std::string job = launch.job;
  const int ranks = launch.ranks;
  rank_ = launch.rank;
  one_machine_ = launch.local_ranks == ranks;
  if (job.empty() || ranks < 2 || rank_ < 0 || rank_ >= ranks) {
    return;
  }
  std::ranges::replace(job, '/', '_');
  path_ = fmt::format("/dev/shm/espalier-{}-{}", ::getuid(), job);
  const int file = ::open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  const size_t bytes = static_cast<size_t>(ranks) * sizeof(std::atomic<int64_t>);
  void* memory = MAP_FAILED;
  if (file >= 0) {
    if (::ftruncate(file, static_cast<off_t>(bytes)) == 0) {
      memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    ::close(file);
  }
  if (memory != MAP_FAILED) {  // otherwise the error names no rank
    static_assert(std::atomic<int64_t>::is_always_lock_free);
    roll_ = {static_cast<std::atomic<int64_t>*>(memory), static_cast<size_t>(ranks)};
  }
}

void StartWatch::report() const {
  constexpr int64_t kSilent = 1000;  // ms
  std::vector<int> silent;
  int first_alive = rank_;
  for (size_t r = 0; r < roll_.size(); ++r) {
    const int64_t seen = roll_[r];
    if (seen == 0 ? one_machine_ : now_ms() - seen > kSilent) {
      silent.push_back(static_cast<int>(r));
    } else if (seen > 0) {
      first_alive = std::min(first_alive, static_cast<int>(r));
    }
  }
  if (first_alive != rank_) {  // one message is enough; the launcher then ends this process
    std::this_thread::sleep_for(std::chrono::seconds(2));
  }
  const std::string who = silent.empty() ? "a rank"
                                         : fmt::format("rank{} {}", silent.size() > 1 ? "s" : "",
                                                       fmt::join(silent, ", "));
  if (!path_.empty()) {
    ::unlink(path_.c_str());
  }
  on_hang_(fmt::format(
      "{} did not join the start of MPI within {:g} s: it died, is stopped or is slow; see its own "
      "output, and raise parallel.timeout_s if it is slow",
      who, timeout_));
}

}  // namespace espalier::parallel
