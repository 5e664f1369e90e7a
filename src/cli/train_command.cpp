// espalier train CONFIG.toml: alone, or as one of the ranks of mpirun or srun.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <ctime>
#include <optional>
#include <thread>

#include "parallel/grid.h"
#include "parallel/transport/mpi_communicator.h"
#include "parallel/transport/thread_communicator.h"
#include "src/cli/commands.h"
#include "src/cli/console.h"
#include "src/cli/listing.h"
#include "src/config/parse.h"
#include "src/train/exchange/agreement.h"
#include "src/train/run/trainer.h"

namespace espalier::cli {
namespace {

/// Signals that stop a run: SIGTERM or SIGUSR1 from clusters, SIGINT from users. The run finishes
/// its step, then saves.
volatile std::sig_atomic_t g_stop = 0;
std::atomic<int64_t> g_stop_time = 0;  // of the first signal, in ms
static_assert(std::atomic<int64_t>::is_always_lock_free);

int64_t milliseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1000} + now.tv_nsec / 1'000'000;
}

extern "C" void request_stop(int signal) {
  constexpr int64_t kSameKey = 300;  // ms; a launcher may repeat the Ctrl-C of the terminal
  if (g_stop == 0) {
    g_stop_time = milliseconds();
  } else if (signal == SIGINT && milliseconds() - g_stop_time > kSameKey) {
    _exit(130);  // second Ctrl-C: stop at once
  }
  g_stop = 1;
}

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    sigaction(signal, &action, nullptr);
  }
}

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string out;
  std::string resume;
  std::string init;
  int64_t steps = 0;
  bool dry_run = false;
  bool json = false;  ///< of the listing
};

io::Config config_of(const TrainArguments& arguments) {
  std::vector<std::string> overrides = arguments.overrides;
  if (!arguments.out.empty()) {
    overrides.push_back("run.out=\"" + arguments.out + "\"");
  }
  return config::load(arguments.config, overrides);
}

void train_on(parallel::Communicator& comm, const io::Config& config,
              const TrainArguments& arguments) {
  install_signal_handlers();
  Progress progress(
      comm.rank() == 0,
      arguments.steps > 0 ? std::min(arguments.steps, config.train.steps) : config.train.steps,
      on_terminal());
  train::TrainerOptions options{
      .resume = arguments.resume,
      .init = arguments.init,
      .stop_after = arguments.steps,
      .git = build_git(),
      .stop_requested = [] { return g_stop != 0; },
      .on_step = [&](const train::StepReport& report) { progress.step(report); },
      .on_note = [&](const std::string& text) { progress.note(text); }};
  train::Trainer trainer(config, comm, std::move(options));
  progress.note(describe_run(config, trainer, comm));
  const train::RunResult result = trainer.run();
  progress.finish();
  const bool signalled = g_stop != 0;
  progress.note(
      result.finished ? fmt::format("finished: {}/summary.json", config.run.out)
      : signalled
          ? fmt::format("stopped at step {} by a signal; --resume auto continues", result.steps)
          : fmt::format("ended after step {}; --resume auto continues", result.steps));
}

/// Waits up to a second for the SIGTERM that a launcher sends after another rank ended the job.
bool ended_by_launcher() {
  g_stop = 0;
  for (int i = 0; i < 100 && g_stop == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return g_stop != 0;
}

/// For ranks under a launcher: a failure of this rank ends all ranks, with one message.
int train_under_launcher(const io::Config& config, const TrainArguments& arguments) {
  parallel::MpiScope mpi({.timeout = config.parallel.timeout_s});
  try {
    train_on(mpi.world(), config, arguments);
    return 0;
  } catch (const train::SharedFailure& failure) {
    if (mpi.world().rank() == 0) {
      print_error(failure.what());
    }
    mpi.abort(1);
  } catch (const Failure& failure) {
    mpi.world().poison(failure.what());
    if (mpi.world().rank() != 0 && ended_by_launcher()) {
      _exit(1);  // most failures occur on all ranks; rank 0 reports them
    }
    print_error(failure.what());
    mpi.abort(1);
  } catch (const std::exception& bug) {
    print_error(fmt::format("bug in espalier, please report it: {}", bug.what()));
    mpi.abort(3);
  }
}

int train(const TrainArguments& arguments) {
  std::optional<io::Config> config;
  try {
    config = config_of(arguments);
  } catch (const Failure&) {
    if (launched_rank() == 0) {
      throw;
    }
    return 1;  // every rank reads the same file; rank 0 reports the error
  }
  if (arguments.dry_run) {
    if (launched_rank() == 0) {
      print_listing(*config, arguments.json);
    }
    return 0;
  }
  if (parallel::launched_by_mpi()) {
    return train_under_launcher(*config, arguments);
  }
  train_on(*parallel::self_communicator(), *config, arguments);
  return 0;
}

}  // namespace

void register_train(CLI::App& app, Action& chosen) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* command =
      app.add_subcommand("train", "Train a network; under mpirun, on all its ranks");
  command->add_option("config", arguments->config, "TOML file (docs/config.md lists the keys)")
      ->required();
  command->add_option("--set", arguments->overrides, "section.key=value, instead of the file's")
      ->allow_extra_args(false);
  command->add_option("--out", arguments->out, "run directory, instead of run.out");
  command->add_option("--resume", arguments->resume, "auto, none, or a checkpoint");
  command->add_option("--init", arguments->init, "weights and masks to start from (HDF5)");
  command->add_option("--steps", arguments->steps, "end this call after step N of the run")
      ->check(CLI::PositiveNumber);
  command->add_flag("--dry-run", arguments->dry_run,
                    "list parameters and memory, without data or training");
  command->add_flag("--json", arguments->json, "with --dry-run: print one JSON object")
      ->needs("--dry-run");
  command->callback([arguments, &chosen] { chosen = [arguments] { return train(*arguments); }; });
}

}  // namespace espalier::cli
