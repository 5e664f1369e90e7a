#include "src/cli/stop_signals.h"

#include <csignal>
#include <initializer_list>

namespace espalier::cli {

void install_stop_handler(void (*handler)(int signal)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    sigaction(signal, &action, nullptr);
  }
  if (std::signal(SIGHUP, SIG_IGN) != SIG_IGN) {
    sigaction(SIGHUP, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace espalier::cli
