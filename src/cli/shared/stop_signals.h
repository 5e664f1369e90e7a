#pragma once
// Signals that ask a command to end: SIGTERM or SIGUSR1 from clusters, SIGINT from users, SIGHUP
// from a terminal that is closed. And SIGBUS, which ends a command that has lost its data.

namespace espalier::cli {

/// Installs `handler` for these signals, except for SIGHUP where nohup ignores it. Ignores SIGPIPE:
/// notes to a closed pipe are lost, the command goes on.
void install_stop_handler(void (*handler)(int signal));

/// The same for a command that computes: a thread of its own calls `handler`, and threads that
/// start after this call are not interrupted. Products must not be: for CPUs without AVX-512,
/// oneDNN 2.6 generates code that moves the stack pointer into the heap, and the kernel would write
/// the frame of a handler there.
void call_on_stop_signals(void (*handler)(int signal));

/// From now on the read of a mapped file that has shrunk ends the process with an error that names
/// the file, and exit code 1. Any other SIGBUS does what it did before.
void explain_lost_data();

}  // namespace espalier::cli
