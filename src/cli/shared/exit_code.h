#pragma once
// Exit codes (docs/errors.md) and the outcome file that tells `supervise` how a rank ended.
#include <exception>
#include <string>

namespace espalier::cli {

enum ExitCode : int {
  kDone = 0,
  kFailed = 1,   ///< the environment is wrong: the same command fails again
  kUsage = 2,    ///< the command line is wrong
  kBug = 3,      ///< an internal error
  kStopped = 4,  ///< stopped by a signal, after a checkpoint
  kRetry = 5,    ///< a peer, the disk or a device failed: the same command may succeed later
};

/// How a command ends.
struct Outcome {
  ExitCode code = kDone;
  std::string message;  ///< of the error
};

/// The outcome that an exception causes.
Outcome outcome_of(const std::exception_ptr& error);

/// If ESPALIER_OUTCOME names a file, replaces it by {"exit": code, "error": message}. A launcher's
/// own failures have exit code 1 as well; they leave no such file. Best effort.
void write_outcome(const Outcome& outcome) noexcept;

}  // namespace espalier::cli
