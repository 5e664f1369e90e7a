#include "src/cli/shared/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <thread>

#include "io/files/file_system.h"
#include "src/core/error.h"
#include "src/core/trace.h"

namespace espalier::cli {
namespace {

/// Saves a run, and reaches all ranks: mpirun ends them a second after its own SIGTERM.
constexpr int kRequest = SIGUSR1;

/// In the environment of all processes of a command: the number of its first one. Process groups
/// would not do, because `timeout` and `setsid` make new ones.
constexpr const char* kCommand = "ESPALIER_COMMAND";

bool belongs_to(pid_t process, pid_t command) {
  std::ifstream file(fmt::format("/proc/{}/environ", process));
  const std::string wanted = fmt::format("{}={}", kCommand, command);
  for (std::string entry; std::getline(file, entry, '\0');) {
    if (entry == wanted) {
      return true;
    }
  }
  return false;
}

}  // namespace

int open_log(const std::filesystem::path& log) {
  int file = -1;
  const int error = io::error_of([&] {
    return file = ::open(log.c_str(),
                         O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  });
  check_system(error == 0, error, "{} cannot be opened: {}; if it is a link, remove it",
               log.string(), io::cause_of(error));
  struct stat status {};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(file);
    throw Failure(fmt::format("{} is not an ordinary file; remove it", log.string()));
  }
  return file;
}

pid_t start_process(const std::vector<std::string>& command, const std::filesystem::path& log) {
  std::vector<char*> arguments;
  for (const std::string& text : command) {
    arguments.push_back(const_cast<char*>(text.c_str()));
  }
  arguments.push_back(nullptr);
  const int output = log.empty() ? -1 : open_log(log);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  const int error = errno;
  if (pid != 0 && output >= 0) {
    ::close(output);
  }
  check(pid >= 0, "no process can be started: {}", io::cause_of(error));
  if (pid > 0) {
    return pid;
  }
  ::setpgid(0, 0);
  ::setenv(kCommand, std::to_string(::getpid()).c_str(), 1);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  const int none = ::open("/dev/null", O_RDONLY);
  ::dup2(none, STDIN_FILENO);
  if (output >= 0) {
    ::dup2(output, STDOUT_FILENO);
    ::dup2(output, STDERR_FILENO);
  }
  if (::getppid() == parent) {
    ::execvp(arguments[0], arguments.data());
  }
  _exit(errno == ENOENT || errno == EACCES ? 127 : 126);
}

void end_processes(std::span<const pid_t> children) {
  constexpr double kGrace = 10;  // s, from SIGTERM until SIGKILL
  const auto has_ended = [](pid_t child, int options) {
    siginfo_t info{};
    return ::waitid(P_PID, child, &info, WEXITED | WNOWAIT | options) != 0 || info.si_pid == child;
  };
  for (const pid_t child : children) {
    ::kill(child, SIGTERM);
    ::kill(child, SIGCONT);
  }
  const double begin = now_seconds();
  for (const pid_t child : children) {
    while (!has_ended(child, WNOHANG) && now_seconds() - begin < kGrace) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  for (const pid_t child : children) {
    ::kill(child, SIGKILL);
    has_ended(child, 0);
  }
}

std::vector<pid_t> child_processes() {
  std::ifstream list("/proc/thread-self/children");
  return {std::istream_iterator<pid_t>(list), {}};
}

void end_descendants() {
  for (auto left = child_processes(); !left.empty(); left = child_processes()) {
    for (const pid_t child : left) {
      ::kill(child, SIGKILL);
    }
    for (const pid_t child : left) {
      ::waitpid(child, nullptr, 0);
    }
  }
}

std::optional<int> TrainingProcess::status() {
  int status = 0;
  if (!status_ && ::waitpid(pid_, &status, WNOHANG) == pid_) {
    status_ = status;
    if (requests_ > 0 && WIFSIGNALED(status) && WTERMSIG(status) == kRequest) {
      hand_over();
    }
  }
  return status_;
}

bool TrainingProcess::request_stop() {
  const double now = now_seconds();
  if (status_ || now < next_request_) {
    return false;
  }
  next_request_ = now + std::ldexp(1.0, requests_++);
  ::kill(pid_, kRequest);
  constexpr int kSixth = 6;  // after 1 + 2 + 4 + 8 + 16 s
  return requests_ == kSixth;
}

void TrainingProcess::end() {
  requests_ = 0;
  if (!status_) {
    end_processes({&pid_, 1});
    status();
  }
}

/// The stop signal kills a script, while launchers and runs obey it. The children of a killed
/// script then get the signal, and the last of them is the process that `status` waits for.
void TrainingProcess::hand_over() {
  for (const pid_t child : child_processes()) {
    if (belongs_to(child, command_) && ::waitpid(child, nullptr, WNOHANG) == 0) {  // it lives
      ::kill(child, kRequest);
      pid_ = child;
      status_.reset();
    }
  }
}

int code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

std::string ending_text(int status) {
  return WIFSIGNALED(status)          ? fmt::format("ended by signal {}", WTERMSIG(status))
         : WEXITSTATUS(status) == 127 ? "the command was not found"
                                      : fmt::format("exit code {}", WEXITSTATUS(status));
}

}  // namespace espalier::cli
