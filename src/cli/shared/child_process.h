#pragma once
// Processes that a command starts and waits for.
#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace espalier::cli {

/// Opens a log to append to it; makes it if it is missing. Throws Failure if it is a link or no
/// ordinary file: the opening of a pipe would wait for its reader.
int open_log(const std::filesystem::path& log);

/// Starts a command (found by PATH) in a process group of its own, so that Ctrl-C of the terminal
/// does not reach it, with an empty standard input. It gets SIGTERM when this process ends.
/// Standard output and error are appended to `log`; empty: they are those of this process. Exit
/// code 127: the command was not found, or permission is missing; 126: another error. Throws
/// Failure if no process can be started, or from `open_log`.
pid_t start_process(const std::vector<std::string>& command, const std::filesystem::path& log = {});

/// Ends children: by SIGTERM, which launchers pass on to their ranks, and SIGCONT, because a
/// stopped process handles no SIGTERM; after 10 s by SIGKILL. Their statuses are left for waitpid.
void end_processes(std::span<const pid_t> children);

/// The children of this thread. If the process is a subreaper, also descendants whose parent has
/// ended, such as ranks whose launcher was killed.
std::vector<pid_t> child_processes();

/// Kills and reaps them all.
void end_descendants();

inline constexpr const char* kStopIgnored =
    "still running 31 s after the stop signal; it may be saving. If its launcher ignores "
    "SIGUSR1, a second signal ends it without a save";

/// A process that trains: the program, a launcher or a script that starts either. To stop the run
/// of a script, the calling process must be a subreaper (PR_SET_CHILD_SUBREAPER).
class TrainingProcess {
 public:
  /// As `start_process`.
  explicit TrainingProcess(const std::vector<std::string>& command,
                           const std::filesystem::path& log = {})
      : pid_(start_process(command, log)), command_(pid_) {}
  TrainingProcess(const TrainingProcess&) = delete;
  TrainingProcess& operator=(const TrainingProcess&) = delete;

  pid_t pid() const { return pid_; }
  /// Of waitpid, once the run has ended.
  std::optional<int> status();
  /// Sends the signal that makes a run save and end. Call it until the run has ended: it repeats
  /// the signal after 1, 3, 7 … s, because a launcher drops it while it starts. A run ignores the
  /// second one. True once, after 31 s: time to tell the user kStopIgnored.
  bool request_stop();
  /// As `end_processes`.
  void end();

 private:
  void hand_over();

  pid_t pid_;
  pid_t command_;  ///< first process of the command
  int requests_ = 0;
  double next_request_ = 0;
  std::optional<int> status_;
};

/// Of a status of waitpid: the exit code, or 128 + signal.
int code_of(int status);

/// Such a status in words.
std::string ending_text(int status);

}  // namespace espalier::cli
