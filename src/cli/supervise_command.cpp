// espalier supervise -- COMMAND: runs a training command again until it has finished.
//
// Each attempt runs in its own process group. After it ends (exit_code.h, docs/errors.md):
//
//   stop   success, stopped by a signal, wrong usage, or a permanent failure that a rank reported
//   retry  anything else (lost peer, disk, device, crash, kill, launcher error); with --resume auto
//          once an attempt has begun its run in the directory, until then with the command's own
//
// Pause: --pause seconds, doubled (up to 300 s) for each further attempt without a new checkpoint.
// After --attempts of those in a row the supervisor gives up. An attempt whose metrics, checkpoints
// and summary do not change for --stall seconds is ended, and retried. A stop signal ends the
// attempt, or the pause, and the supervisor: with exit code 4 unless the run succeeded or a rank
// reported an error. A second one does not wait for the run to save.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <ctime>
#include <set>
#include <thread>
#include <utility>

#include "io/checkpoint/checkpoint.h"
#include "io/files/file_system.h"
#include "io/files/folders.h"
#include "io/files/raw_file.h"
#include "io/run/parse_json.h"
#include "src/cli/commands.h"
#include "src/cli/shared/child_process.h"
#include "src/cli/shared/console.h"
#include "src/cli/shared/exit_code.h"
#include "src/cli/shared/options.h"
#include "src/cli/shared/stop_signals.h"
#include "src/cli/shared/train_arguments.h"
#include "src/core/error.h"
#include "src/core/trace.h"
#include "src/train/memory/budget.h"

namespace espalier::cli {
namespace {

namespace fs = std::filesystem;
using Command = std::vector<std::string>;

struct SuperviseArguments {
  Command command;
  int attempts = 5;
  double pause = 1;
  double stall = 1800;
  bool fewer_ranks = false;
};

constexpr double kLongestPause = 300;  // s
constexpr std::chrono::milliseconds kTick(20);

/// Number of stop signals received.
volatile std::sig_atomic_t g_requests = 0;
extern "C" void request_end(int /*signal*/) { g_requests = g_requests + 1; }

/// The arguments of `train` in a command such as `mpirun -n 2 espalier train c.toml`.
Command::const_iterator train_in(const Command& command) {
  const auto train = std::ranges::find(command, "train");
  if (train == command.end() || train == command.begin()) {
    throw Usage(
        "the command has no `espalier train …`: espalier supervise -- mpirun -n 2 espalier "
        "train CONFIG.toml");
  }
  return train;
}

TrainArguments parse_train(const Command& command) {
  TrainArguments arguments;
  CLI::App parser;
  add_options(parser, arguments);
  Command options(train_in(command) + 1, command.end());
  std::ranges::reverse(options);  // CLI11 takes them from the back
  try {
    parser.parse(options);
  } catch (const CLI::ParseError& error) {
    throw Usage(fmt::format("the command's options of train: {}", error.what()));
  }
  if (arguments.dry_run) {
    throw Usage("a dry run needs no supervisor: remove --dry-run");
  }
  return arguments;
}

/// The same command, continuing its run.
Command resumed(Command command) {
  auto option = command.begin() + (train_in(command) - command.cbegin()) + 1;
  for (; option != command.end(); ++option) {
    if (*option == "--resume" && option + 1 != command.end()) {
      option[1] = "auto";
      return command;
    }
    if (option->starts_with("--resume=")) {
      *option = "--resume=auto";
      return command;
    }
  }
  command.insert(command.end(), {"--resume", "auto"});
  return command;
}

/// Whether the command names the checkpoint that it starts from.
bool resumes_file(const Command& command) {
  const std::string resume = parse_train(command).resume;
  return !resume.empty() && resume != "auto" && resume != "none";
}

/// The number of ranks among the launcher's options, or the command's end.
Command::iterator ranks_in(Command& command) {
  const auto train = command.begin() + (train_in(command) - command.cbegin());
  const auto option = std::find_if(command.begin(), train, [](const std::string& text) {
    return text == "-n" || text == "-np" || text == "--np" || text == "--ntasks";
  });
  return option == train || option + 1 == train ? command.end() : option + 1;
}

/// The next lower number of ranks that the grid of stages and replicas allows; 0: none.
int fewer_ranks(const io::Config& config, int ranks) {
  const auto stages = static_cast<int>(std::max<int64_t>(config.parallel.pipeline, 1));
  for (int replicas = (ranks - 1) / stages; replicas > 0; --replicas) {
    try {
      train::share_of(config, replicas);
      return replicas * stages;
    } catch (const Failure&) {  // the batch is no multiple
    }
  }
  return 0;
}

/// A process and its descendants.
class Attempt : public TrainingProcess {
 public:
  using TrainingProcess::TrainingProcess;
  ~Attempt() { end_descendants(); }
  void end() {
    TrainingProcess::end();
    end_descendants();
  }
};

/// A file and when it was written; a missing one has the earliest time.
using Version = std::pair<fs::path, fs::file_time_type>;
Version version_of(const fs::path& file) {
  std::error_code missing;
  return {file, fs::last_write_time(file, missing)};
}

/// Changes while a run makes progress. Each time counts for itself: with a clock that was set back
/// an old one may be the latest.
std::array<Version, 3> progress_of(const fs::path& run) {
  return {version_of(run / "metrics.jsonl"), version_of(run / "checkpoints"),
          version_of(run / "summary.json")};
}

/// The manifest and the checkpoints of the directory.
std::set<Version> versions_in(const fs::path& run) {
  std::set<Version> versions{version_of(run / "manifest.json")};
  for (const fs::path& file : io::checkpoints_in(run / "checkpoints")) {
    versions.insert(version_of(file));
  }
  return versions;
}

int64_t newest_step(const fs::path& run) {
  const auto all = io::checkpoints_in(run / "checkpoints");
  return all.empty() ? -1 : *io::checkpoint_step(all.back());
}

std::string time_text() {
  std::array<char, 32> text{};
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

class Supervisor {
 public:
  explicit Supervisor(const SuperviseArguments& arguments)
      : arguments_(arguments),
        command_(arguments.command),
        config_(config_of(parse_train(command_))),
        run_(config_.run.out),
        log_(run_ / "supervise.jsonl") {}

  int run() {
    if (std::isnan(arguments_.pause) || std::isnan(arguments_.stall)) {
      throw Usage("--pause and --stall take a number of seconds, not nan");
    }
    if (arguments_.fewer_ranks && ranks_in(command_) == command_.end()) {
      throw Usage(
          "--fewer-ranks finds no number of ranks in the command: add -n N before espalier");
    }
    io::make_folder_of(log_);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // for child_processes
    install_stop_handler(request_end);
    before_ = versions_in(run_);
    for (int failures = 0;;) {
      const int64_t before = newest_step(run_);
      const End end = attempt();
      failures = newest_step(run_) > before ? 0 : failures + 1;
      const std::optional<int> result = decide(end, failures);
      if (result) {
        return *result;
      }
      if (has_begun()) {
        command_ = resumed(command_);
      }
      if (arguments_.fewer_ranks && failures > 1) {
        reduce_ranks();
      }
      pause(failures);
      if (g_requests > 0) {
        note("stopped by a signal between two attempts");
        return kStopped;
      }
    }
  }

 private:
  struct End {
    int status = 0;  ///< of waitpid
    bool stalled = false;
    std::optional<Outcome> outcome;  ///< as reported by a rank
  };

  /// Whether `--resume auto` continues what an attempt began, not what was there before. A command
  /// that names its checkpoint needs it until the run has saved another; any other run has replaced
  /// what was there when it writes its manifest.
  bool has_begun() const {
    if (!resumes_file(command_)) {
      return !before_.contains(version_of(run_ / "manifest.json"));
    }
    const auto all = io::checkpoints_in(run_ / "checkpoints");
    return !all.empty() && !before_.contains(version_of(all.back()));
  }

  End attempt() {
    ++number_;
    const fs::path outcome =
        fs::absolute(io::temporary_name(run_ / fmt::format("outcome-{}.json", number_)));
    ::setenv("ESPALIER_OUTCOME", outcome.c_str(), 1);
    write({{"event", "start"}, {"command", command_}, {"newest_step", newest_step(run_)}});
    Attempt attempt(command_);
    End end;
    int passed_on = 0;
    double stop_requested_at = 0;
    double quiet_since = now_seconds();
    auto progress = progress_of(run_);
    double last_look = quiet_since;
    while (!attempt.status()) {
      std::this_thread::sleep_for(kTick);
      const double now = now_seconds();
      quiet_since += std::max(0.0, now - last_look - 1);  // this process was suspended
      last_look = now;
      if (g_requests > passed_on) {
        if (passed_on > 0) {
          attempt.end();
          continue;
        }
        stop_requested_at = now;
        passed_on = g_requests;
      }
      if (passed_on > 0 && attempt.request_stop()) {
        note(kStopIgnored);
      }
      if (const auto latest = progress_of(run_); latest != progress) {
        progress = latest;
        quiet_since = now;
      }
      end.stalled = now - std::max(quiet_since, stop_requested_at) > arguments_.stall;
      if (end.stalled) {
        attempt.end();
      }
    }
    end.status = *attempt.status();
    end.outcome = outcome_in(outcome);
    if (code_of(end.status) == kDone && end.outcome && end.outcome->code != kStopped) {
      end.outcome.reset();  // only the code of a stop may be lost (train_command.cpp)
    }
    std::error_code missing;
    fs::remove(outcome, missing);
    return end;
  }

  /// The supervisor's exit code if this end is the last one.
  std::optional<int> decide(const End& end, int failures) {
    const int code = end.outcome ? end.outcome->code : code_of(end.status);
    // A launcher's own error has the code of a fatal one, but no rank reported it.
    const bool fatal = code == kUsage || (code == kFailed && end.outcome);
    const bool stopped = code == kStopped && !end.stalled;  // else the supervisor stopped it
    const bool failed = code != kDone && !stopped && !fatal;
    const bool again = failed && g_requests == 0;
    const bool gives_up = again && failures >= arguments_.attempts;
    const std::string why = end.stalled
                                ? fmt::format("it wrote nothing for {:g} s", arguments_.stall)
                            : end.outcome ? end.outcome->message
                                          : ending_text(end.status);
    write({{"event", "end"},
           {"exit", code_of(end.status)},
           {"error", code == kDone ? "" : why},
           {"newest_step", newest_step(run_)},
           {"action", gives_up ? "give up"
                      : again  ? "retry"
                               : "end"}});
    if (fatal) {
      note(fmt::format("attempt {} failed, and a retry would fail, too: {}", number_, why));
    } else if (failed && !again) {
      note(fmt::format("stopped by a signal; attempt {} ended before it saved: {}", number_, why));
      return end.outcome ? code : kStopped;
    }
    if (!again) {
      return code;
    }
    note(fmt::format("attempt {} failed at checkpoint step {}: {}", number_, newest_step(run_),
                     why));
    if (gives_up) {
      note(fmt::format("{} attempts in a row saved no checkpoint: given up; see {}", failures,
                       log_.string()));
      return code == kBug ? kBug : kRetry;
    }
    return {};
  }

  /// Of a rank; none if it reported none, or the file is damaged.
  static std::optional<Outcome> outcome_in(const fs::path& file) {
    try {
      const auto json = io::parse_json(io::read_text(file, "outcome", io::kMaxConfig));
      const int code = json.at("exit").get<int>();
      if (code >= kFailed && code <= kRetry) {
        return Outcome{.code = static_cast<ExitCode>(code),
                       .message = json.at("error").get<std::string>()};
      }
    } catch (const Failure&) {
    } catch (const nlohmann::json::exception&) {
    }
    return {};
  }

  void reduce_ranks() {
    const auto ranks = ranks_in(command_);
    const int now = ranks == command_.end() ? 0 : std::atoi(ranks->c_str());
    if (const int fewer = fewer_ranks(config_, now); fewer > 0) {
      note(fmt::format("going on with {} ranks instead of {}", fewer, now));
      *ranks = fmt::format("{}", fewer);
    }
  }

  void pause(int failures) const {
    const double seconds =
        std::min(arguments_.pause * std::pow(2.0, std::max(failures - 1, 0)), kLongestPause);
    for (const double begin = now_seconds(); now_seconds() - begin < seconds && g_requests == 0;) {
      std::this_thread::sleep_for(kTick);
    }
  }

  static void note(const std::string& text) { print_note("supervise: " + text); }

  /// One line of supervise.jsonl, on the disk when this returns. An error loses the line only.
  void write(nlohmann::ordered_json line) const {
    nlohmann::ordered_json all{{"time", time_text()}, {"attempt", number_}};
    all.update(line);
    const std::string text =
        all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    try {
      const int file = open_log(log_);
      const bool written = ::write(file, text.data(), text.size()) >= 0 && ::fsync(file) == 0;
      const int error = errno;
      ::close(file);
      check_system(written, error, "{} cannot be written: {}", log_.string(), io::cause_of(error));
    } catch (const Failure& failure) {
      note(failure.what());
    }
  }

  SuperviseArguments arguments_;
  Command command_;
  io::Config config_;
  fs::path run_, log_;
  std::set<Version> before_;  ///< in the directory when the supervisor started
  int number_ = 0;
};

}  // namespace

void register_supervise(CLI::App& app, Action& chosen) {
  auto arguments = std::make_shared<SuperviseArguments>();
  CLI::App* command = app.add_subcommand(
      "supervise", "Run `espalier train`, alone or under a launcher, again until it has finished");
  command
      ->add_option("command", arguments->command,
                   "after --: the whole command, such as mpirun -n 2 espalier train CONFIG.toml")
      ->required();
  option(*command, "--attempts", arguments->attempts,
         "give up after so many in a row that save no checkpoint", CLI::PositiveNumber)
      ->capture_default_str();
  option(*command, "--pause", arguments->pause,
         "seconds before the next attempt; doubles without a new checkpoint",
         CLI::NonNegativeNumber)
      ->capture_default_str();
  option(*command, "--stall", arguments->stall,
         "end an attempt that writes nothing for so many seconds", CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--fewer-ranks", arguments->fewer_ranks,
                    "after two attempts in a row without a new checkpoint start the next lower "
                    "number of ranks that the grid allows; needs -n N in the command");
  command->callback(
      [arguments, &chosen] { chosen = [arguments] { return Supervisor(*arguments).run(); }; });
}

}  // namespace espalier::cli
