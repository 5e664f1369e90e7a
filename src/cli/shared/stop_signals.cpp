#include "src/cli/shared/stop_signals.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <thread>

#include "io/files/mapped_file.h"
#include "src/cli/shared/console.h"
#include "src/cli/shared/exit_code.h"

namespace espalier::cli {
namespace {

struct sigaction g_before_bus {};  ///< the action for SIGBUS that ours replaced
bool g_hangup_ignored = false;     ///< when the process began

/// Constructors of libraries may replace the action for SIGHUP, so that nohup would have no effect
/// (UCX, which Open MPI 5 loads): this runs before them, and before sanitizers are ready.
__attribute__((no_sanitize("address", "thread", "undefined"))) void note_ignored_hangup(
    int /*argc*/, char** /*argv*/, char** /*environment*/) {
  struct {
    void (*handler)(int);
    unsigned long flags;  // NOLINT: as the kernel defines it
    void (*restorer)();
    uint64_t mask;
  } now{};
  g_hangup_ignored = syscall(SYS_rt_sigaction, SIGHUP, nullptr, &now, sizeof(now.mask)) == 0 &&
                     now.handler == SIG_IGN;
}
[[gnu::section(".preinit_array"),
  gnu::used]] void (*const g_before_constructors)(int, char**, char**) = note_ignored_hangup;

/// The signal of a failed read comes in the thread that reads, at its own load from the mapping. It
/// interrupts no function of a library that holds a lock, so this handler may allocate and print.
extern "C" void end_after_lost_data(int signal, siginfo_t* info, void* /*context*/) {
  const bool failed_read = info->si_code == BUS_ADRERR;
  const std::string file = failed_read ? io::mapped_file_at(info->si_addr) : "";
  if (file.empty()) {
    sigaction(signal, &g_before_bus, nullptr);
    if (info->si_code <= 0) {  // sent by a process; a fault repeats itself
      raise(signal);
    }
    return;
  }
  static std::atomic_flag ending;
  while (ending.test_and_set()) {  // another thread ends the process
    pause();
  }
  const Outcome outcome{
      .code = kFailed,
      .message = "data file " + file +
                 " has become shorter, or its disk fails, while it is read; restore the file, then "
                 "repeat the command (train: with --resume auto)"};
  print_error(outcome.message);
  write_outcome(outcome);
  _exit(outcome.code);
}

}  // namespace

void explain_lost_data() {
  struct sigaction action {};
  action.sa_sigaction = end_after_lost_data;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, &g_before_bus);
}

void install_stop_handler(void (*handler)(int signal)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    sigaction(signal, &action, nullptr);
  }
  if (g_hangup_ignored) {
    std::signal(SIGHUP, SIG_IGN);
  } else {
    sigaction(SIGHUP, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);
}

void call_on_stop_signals(void (*handler)(int signal)) {
  static std::atomic<void (*)(int)> latest;
  latest = handler;
  install_stop_handler(handler);  // for threads that exist already, such as those of MPI
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGHUP}) {
    struct sigaction now {};
    sigaction(signal, nullptr, &now);
    if (now.sa_handler == handler) {  // SIGHUP may be ignored
      sigaddset(&signals, signal);
    }
  }
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  static std::once_flag started;
  std::call_once(started, [signals] {
    std::thread([signals] {
      for (int signal = 0; sigwait(&signals, &signal) == 0;) {
        latest.load()(signal);
      }
    }).detach();
  });
}

}  // namespace espalier::cli
