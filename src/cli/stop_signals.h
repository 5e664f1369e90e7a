#pragma once
// Signals that ask a command to end: SIGTERM or SIGUSR1 from clusters, SIGINT from users, SIGHUP
// from a terminal that is closed.

namespace espalier::cli {

/// Installs `handler` for these signals, except for SIGHUP where nohup ignores it. Ignores SIGPIPE:
/// notes to a closed pipe are lost, the command goes on.
void install_stop_handler(void (*handler)(int signal));

}  // namespace espalier::cli
