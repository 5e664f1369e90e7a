// espalier train CONFIG.toml: alone, or as one of the ranks of mpirun or srun.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <ctime>
#include <optional>
#include <thread>

#include "io/checkpoint/checkpoint.h"
#include "io/files/folders.h"
#include "parallel/grid.h"
#include "parallel/transport/mpi_communicator.h"
#include "parallel/transport/thread_communicator.h"
#include "parallel/transport/watchdog.h"
#include "src/cli/commands.h"
#include "src/cli/shared/console.h"
#include "src/cli/shared/exit_code.h"
#include "src/cli/shared/listing.h"
#include "src/cli/shared/options.h"
#include "src/cli/shared/paths.h"
#include "src/cli/shared/stop_signals.h"
#include "src/cli/shared/train_arguments.h"
#include "src/config/parse.h"
#include "src/config/schema.h"
#include "src/train/exchange/agreement.h"
#include "src/train/run/trainer.h"

namespace espalier::cli {
namespace {

/// Stop signals (stop_signals.h): the run finishes its step, then saves.
std::atomic<bool> g_stop = false;
std::atomic<int64_t> g_stop_time = 0;  // of the first signal, in ms
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

int64_t milliseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1000} + now.tv_nsec / 1'000'000;
}

extern "C" void request_stop(int signal) {
  constexpr int64_t kSameKey = 300;  // ms; a launcher may repeat the Ctrl-C of the terminal
  if (!g_stop) {
    g_stop_time = milliseconds();
  } else if (signal == SIGINT && milliseconds() - g_stop_time > kSameKey) {
    _exit(130);  // second Ctrl-C: stop at once
  }
  g_stop = true;
}

/// Waits up to a second for the SIGTERM that a launcher sends after another rank ended the job.
bool ended_by_launcher() {
  g_stop = false;
  for (int i = 0; i < 100 && !g_stop; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return g_stop;
}

void report(const Outcome& outcome) {
  print_error(outcome.message);
  write_outcome(outcome);
}

/// Whether all ranks throw this error.
bool is_shared(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const train::SharedFailure&) {
    return true;
  } catch (...) {
    return false;
  }
}

/// For ranks under a launcher: a failure of this rank ends all ranks, with one message.
int run_under_launcher(const io::Config& config, const RankBody& body) {
  parallel::MpiScope mpi({.timeout = config.parallel.timeout_s, .on_hang = [](const auto& why) {
                            report({.code = kRetry, .message = why});
                            _exit(kRetry);
                          }});
  explain_lost_data();  // after MPI, which shows the stack of any other SIGBUS
  const auto end_all = [&] {
    const Outcome outcome = outcome_of(std::current_exception());
    const int rank = mpi.world().rank();
    if (is_shared(std::current_exception())) {
      if (rank == 0) {
        report(outcome);
      }
      mpi.abort(outcome.code);
    }
    mpi.world().poison(Failure(outcome.message, outcome.code == kRetry));
    if (rank != 0 && outcome.code != kBug && ended_by_launcher()) {
      _exit(outcome.code);  // most failures occur on all ranks; rank 0 reports them
    }
    report(outcome);
    mpi.abort(outcome.code);
  };
  try {
    return body(mpi.world(), end_all);
  } catch (...) {
    end_all();
    throw;
  }
}

/// The network of a file of weights; the default one of a file that does not describe it, or does
/// not exist, which the run reports.
io::ModelConfig model_in(const std::string& file) {
  if (!io::path_exists(file) || !io::is_checkpoint(file)) {
    return {};
  }
  const std::string text = io::CheckpointReader(file).meta().config;
  return text.empty() ? io::ModelConfig() : config::parse_saved(text, file + " (config)").model;
}

/// For a config without [model]: the network of the weights that the run starts from.
io::ModelConfig model_of(const TrainArguments& arguments, const io::Config& rest) {
  if (!arguments.init.empty()) {
    return model_in(arguments.init);
  }
  if (arguments.resume.empty() || arguments.resume == "none") {
    return {};
  }
  if (arguments.resume != "auto") {
    return model_in(arguments.resume);
  }
  const std::filesystem::path run =
      std::filesystem::path(arguments.out.value_or(rest.run.out)) / "config.toml";
  return io::path_exists(run) ? config::load_saved(run).model : io::ModelConfig();
}

/// Trains as one rank of `comm`. `on_failure` is called with the exception in flight before the run
/// is destroyed: that waits for devices, and one may hang.
ExitCode train_on(parallel::Communicator& comm, const io::Config& config,
                  const TrainArguments& arguments, const std::function<void()>& on_failure) {
  call_on_stop_signals(request_stop);
  Progress progress(
      comm.rank() == 0,
      arguments.steps > 0 ? std::min(arguments.steps, config.train.steps) : config.train.steps,
      on_terminal());
  train::TrainerOptions options{
      .resume = arguments.resume,
      .init = arguments.init,
      .stop_after = arguments.steps,
      .git = build_git(),
      .accepted = arguments.accepted,
      .stop_requested = [] { return g_stop.load(); },
      .on_step = [&](const train::StepReport& report) { progress.step(report); },
      .on_note = [&](const std::string& text) { progress.note(text); }};
  train::Trainer trainer(config, comm, std::move(options));
  progress.note(describe_run(config, trainer, comm));
  train::RunResult result;
  try {
    result = trainer.run();
  } catch (...) {
    progress.finish();
    on_failure();
    throw;
  }
  progress.finish();
  const std::string end =
      result.finished ? fmt::format("finished: {}/summary.json", config.run.out)
      : result.stopped
          ? fmt::format("stopped at step {} by a signal; --resume auto continues", result.steps)
          : fmt::format("ended after step {}; --resume auto continues", result.steps);
  progress.note(end);
  if (result.stopped && comm.rank() == 0) {  // MPICH's mpirun may return 0 after a signal
    write_outcome({.code = kStopped, .message = end});
  }
  return result.stopped ? kStopped : kDone;
}

int train(const TrainArguments& arguments) {
  std::optional<io::Config> config;
  try {
    config = config_of(arguments);
  } catch (const Failure&) {
    // Usually all ranks read the same file and rank 0 reports the error: it ends the job meanwhile.
    if (launched_rank() != 0) {
      std::this_thread::sleep_for(std::chrono::seconds(5));
    }
    throw;
  }
  note_default_network(arguments, *config);
  if (arguments.dry_run) {
    if (launched_rank() == 0) {
      const bool resumes =
          !arguments.resume.empty() && arguments.resume != "auto" && arguments.resume != "none";
      const auto file =
          resumes ? std::optional<std::filesystem::path>(arguments.resume) : std::nullopt;
      print_listing(*config, {.resume = file, .init = arguments.init}, arguments.ranks,
                    arguments.json);
    }
    return 0;
  }
  return on_ranks(*config, [&](parallel::Communicator& comm, const auto& on_failure) {
    return train_on(comm, *config, arguments, on_failure);
  });
}

}  // namespace

int on_ranks(const io::Config& config, const RankBody& body) {
  if (parallel::launched_by_mpi()) {
    return run_under_launcher(config, body);
  }
  std::optional<parallel::Watchdog> watchdog;
  return body(*parallel::self_communicator(), [&] {
    const Outcome outcome = outcome_of(std::current_exception());
    watchdog.emplace(config.parallel.timeout_s, [outcome] {
      report(outcome);
      _exit(outcome.code);
    });
  });
}

io::Config config_of(const TrainArguments& arguments) {
  io::Config config =
      config::load(arguments.config, arguments.overrides,
                   [&](const io::Config& rest) { return model_of(arguments, rest); });
  if (arguments.out) {
    config.run.out = *arguments.out;
    config::check_limits(*config::find_field("run", "out"), config, "--out");
    config::validate(config);
  }
  name_checkpoints(config);
  config::check_prunes_in_time(config);
  return config;
}

void note_default_network(const TrainArguments& arguments, const io::Config& config) {
  const bool starts =
      !arguments.init.empty() || (!arguments.resume.empty() && arguments.resume != "none");
  const bool overridden = std::ranges::any_of(
      arguments.overrides, [](const std::string& set) { return set.starts_with("model."); });
  if (launched_rank() != 0 || starts || overridden ||
      config::has_section(arguments.config, "model")) {
    return;
  }
  print_note(
      fmt::format("{} has no [model]: the network is the default one, {} of {} layers, {} "
                  "wide, with a context of {}",
                  arguments.config, config.model.kind, config.model.layers, config.model.width,
                  config.model.context));
}

void add_options(CLI::App& command, TrainArguments& arguments) {
  command.add_option("config", arguments.config, "TOML file (docs/config.md lists the keys)")
      ->required();
  command.add_option("--set", arguments.overrides, "section.key=value, instead of the file's")
      ->allow_extra_args(false);
  command.add_option("--out", arguments.out, "run directory, instead of run.out");
  auto* resume = command.add_option("--resume", arguments.resume, "auto, none, or a checkpoint")
                     ->transform(resume_path);
  command
      .add_option("--accept-changes", arguments.accepted,
                  "what may differ from the checkpoint though it changes results: data, seed, "
                  "order (of the data), masks, parametrization, teacher")
      ->delimiter(',')
      ->check(CLI::IsMember(std::vector<std::string>(train::kAcceptableChanges.begin(),
                                                     train::kAcceptableChanges.end())))
      ->needs(resume);
  command
      .add_option("--init", arguments.init,
                  "weights and masks to start from (HDF5); without a section [model] "
                  "in the config, also its network")
      ->transform(checkpoint_path);
  option(command, "--steps", arguments.steps, "end this call after step N of the run",
         CLI::PositiveNumber);
  command.add_flag(
      "--dry-run", arguments.dry_run,
      "list parameters and memory, without data or training; the masks of --init count");
  option(command, "--ranks", arguments.ranks,
         "with --dry-run: list each stage of a run on N ranks (default: one per stage)",
         CLI::PositiveNumber)
      ->needs("--dry-run");
  command.add_flag("--json", arguments.json, "with --dry-run: print one JSON object")
      ->needs("--dry-run");
}

void register_train(CLI::App& app, Action& chosen) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* command =
      app.add_subcommand("train", "Train a network; under mpirun, on all its ranks");
  add_options(*command, *arguments);
  command->callback([arguments, &chosen] { chosen = [arguments] { return train(*arguments); }; });
}

}  // namespace espalier::cli
