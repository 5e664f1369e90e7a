#include "src/cli/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <system_error>
#include <thread>

#include "src/core/error.h"
#include "src/core/trace.h"

namespace espalier::cli {

pid_t start_process(const std::vector<std::string>& command, const std::filesystem::path& log) {
  std::vector<char*> arguments;
  for (const std::string& text : command) {
    arguments.push_back(const_cast<char*>(text.c_str()));
  }
  arguments.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  check(pid >= 0, "no process can be started: {}", std::generic_category().message(errno));
  if (pid > 0) {
    return pid;
  }
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  const int none = ::open("/dev/null", O_RDONLY);
  ::dup2(none, STDIN_FILENO);
  if (!log.empty()) {
    const int output = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
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

void end_descendants() {
  while (true) {
    std::ifstream list("/proc/thread-self/children");
    std::vector<pid_t> children;
    for (pid_t child = 0; list >> child;) {
      children.push_back(child);
      ::kill(child, SIGKILL);
    }
    if (children.empty()) {
      return;
    }
    for (const pid_t child : children) {
      ::waitpid(child, nullptr, 0);
    }
  }
}

int code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

std::string ending_text(int code) {
  return code > 128    ? fmt::format("ended by signal {}", code - 128)
         : code == 127 ? "the command was not found"
                       : fmt::format("exit code {}", code);
}

}  // namespace espalier::cli
