#pragma once
// Processes that a command starts and waits for.
#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace espalier::cli {

/// Opens a log to append to it; makes it if it is missing. Throws Failure if it is a link or no
/// ordinary file: the opening of a pipe would wait for its reader.
int open_log(const std::filesystem::path& log);

/// Starts a command (found by PATH) in a process group of its own, so that Ctrl-C of the terminal
/// does not reach it, with an empty standard input. It gets SIGTERM when this process ends.
/// Standard output and error are appended to `log`; empty: they are those of this process. Exit
/// code 127: the command was not found; 126: it cannot be executed. Throws Failure if no process
/// can be started, or from `open_log`.
pid_t start_process(const std::vector<std::string>& command, const std::filesystem::path& log = {});

/// Of a status of waitpid: the exit code, or 128 + signal.
int code_of(int status);

}  // namespace espalier::cli
