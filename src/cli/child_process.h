#pragma once
// Processes that a command starts and waits for.
#include <sys/types.h>

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace espalier::cli {

/// Starts a command (found by PATH) in a process group of its own, so that Ctrl-C of the terminal
/// does not reach it, with an empty standard input. It gets SIGTERM when this process ends.
/// Standard output and error are appended to `log`; empty: they are those of this process. Exit
/// code 127: the command was not found; 126: it cannot be executed. Throws Failure if no process
/// can be started.
pid_t start_process(const std::vector<std::string>& command, const std::filesystem::path& log = {});

/// Ends children: a launcher passes SIGTERM on to its ranks, and a stopped process must go on for
/// that. SIGKILL follows after 10 s. Their statuses are left for waitpid.
void end_processes(std::span<const pid_t> children);

/// Kills and reaps all children. Ranks whose launcher was killed are among them if this process is
/// a subreaper.
void end_descendants();

/// Of a status of waitpid: the exit code, or 128 + signal.
int code_of(int status);

/// Such a code in words.
std::string ending_text(int code);

}  // namespace espalier::cli
