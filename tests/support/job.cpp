#include "tests/support/job.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>

namespace espalier {
namespace {

using Clock = std::chrono::steady_clock;

/// Children of all threads, and theirs.
void add_descendants(pid_t pid, std::vector<pid_t>& found) {
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  std::error_code gone;
  for (const auto& task : std::filesystem::directory_iterator(tasks, gone)) {
    std::ifstream children(task.path() / "children");
    for (pid_t child = 0; children >> child;) {
      found.push_back(child);
      add_descendants(child, found);
    }
  }
}

bool alive(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/stat");
  std::string word;
  char state = 'X';
  status >> word >> word >> state;
  return status.good() && state != 'Z' && state != 'X';
}

}  // namespace

std::string ranks_command(int ranks, const std::string& arguments) {
  return fmt::format("'{}/scripts/mpirun.sh' {} {} {}", ESPALIER_SOURCE_DIR, ranks,
                     ESPALIER_PROGRAM, arguments);
}

bool wait_for(const std::function<bool()>& condition, double seconds) {
  const auto begin = Clock::now();
  while (!condition()) {
    if (std::chrono::duration<double>(Clock::now() - begin).count() > seconds) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

void expect_gone(const std::vector<pid_t>& pids) {
  wait_for([&] { return std::ranges::none_of(pids, alive); }, 5);
  for (const pid_t pid : pids) {
    EXPECT_FALSE(alive(pid)) << pid;
  }
}

Job::Job(const Workplace& here, const std::string& command) : here_(here) {
  child_ = fork();
  if (child_ == 0) {
    const std::string line =
        "cd '" + (here / ".").string() + "' && exec " + command + " >.job-out 2>.job-err";
    execl("/bin/sh", "sh", "-c", line.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
}

Job::~Job() {
  std::vector<pid_t> left;
  add_descendants(child_, left);
  if (!ended_) {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  for (const pid_t pid : left) {
    kill(pid, SIGKILL);
  }
}

std::vector<pid_t> Job::running(const std::string& program, const std::string& argument) const {
  std::vector<pid_t> all{child_};
  add_descendants(child_, all);
  std::vector<pid_t> found;
  for (const pid_t pid : all) {
    std::ifstream line("/proc/" + std::to_string(pid) + "/cmdline", std::ios::binary);
    std::string name;
    std::string first;
    std::getline(line, name, '\0');
    std::getline(line, first, '\0');
    if (std::filesystem::path(name).filename() == program &&
        (argument.empty() || first == argument)) {
      found.push_back(pid);
    }
  }
  std::ranges::sort(found);
  return found;
}

std::vector<pid_t> Job::launchers() const {
  for (const char* name : {"mpirun", "mpiexec", "prterun"}) {
    if (std::vector<pid_t> found = running(name, ""); !found.empty()) {
      return found;
    }
  }
  return {};
}

bool Job::wait_for_steps(size_t steps) {
  size_t done = 0;
  wait_for(
      [&] {
        done = static_cast<size_t>(std::ranges::count(here_.read("run/metrics.jsonl"), '\n'));
        return done >= steps || poll();
      },
      60);
  return done >= steps;
}

std::optional<int> Job::wait(double seconds) {
  wait_for([&] { return poll(); }, seconds);
  return ended_;
}

std::vector<pid_t> Job::ranks_after(size_t steps) {
  if (!wait_for_steps(steps)) {
    throw std::runtime_error("no " + std::to_string(steps) + " steps: " + errors());
  }
  std::vector<pid_t> found = ranks();
  if (found.size() != 2) {
    throw std::runtime_error(std::to_string(found.size()) + " ranks: " + errors());
  }
  return found;
}

void Job::expect_end(double seconds, int code) {
  EXPECT_EQ(wait(seconds), std::optional(code)) << "none: it runs\n" << errors();
}

bool Job::poll() {
  int status = 0;
  if (!ended_ && waitpid(child_, &status, WNOHANG) == child_) {
    ended_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return ended_.has_value();
}

}  // namespace espalier
