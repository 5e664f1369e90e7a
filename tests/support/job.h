#pragma once
// A command that runs during a test, with its descendants: jobs of ranks, and their supervisor.
#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/program.h"

namespace espalier {

/// `scripts/mpirun.sh RANKS espalier ARGUMENTS`
std::string ranks_command(int ranks, const std::string& arguments);

/// Waits for a condition; false after `seconds`.
bool wait_for(const std::function<bool()>& condition, double seconds);

/// Checks that all processes end within a few seconds.
void expect_gone(const std::vector<pid_t>& pids);

class Job {
 public:
  /// Runs a shell command in the folder.
  Job(const Workplace& here, const std::string& command);
  ~Job();  ///< ends it, and its descendants
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  pid_t pid() const { return child_; }
  /// Running descendants that are `espalier train`, by PID (rank order unless PIDs wrap).
  std::vector<pid_t> ranks() const { return running("espalier", "train"); }
  std::vector<pid_t> launchers() const;  ///< mpirun or mpiexec
  /// Waits until the run has done `steps` steps; false: it ended or timed out.
  bool wait_for_steps(size_t steps);
  /// The two ranks of a run that has done `steps` steps. Throws if it has not, or others.
  std::vector<pid_t> ranks_after(size_t steps);
  /// Waits for the end and returns the exit code, or 128 + signal; empty after `seconds`.
  std::optional<int> wait(double seconds);
  /// Checks that it ends in time, with this code.
  void expect_end(double seconds, int code);
  std::string errors() const { return here_.read(".job-err"); }

 private:
  bool poll();
  /// Descendants by the name of their program and, unless it is empty, its first argument.
  std::vector<pid_t> running(const std::string& program, const std::string& argument) const;

  const Workplace& here_;
  pid_t child_ = 0;
  std::optional<int> ended_;
};

}  // namespace espalier
