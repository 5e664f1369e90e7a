#include "src/cli/shared/training_runs.h"

#include <sys/prctl.h>
#include <wordexp.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <thread>

#include "io/files/folders.h"
#include "io/files/raw_file.h"
#include "src/cli/shared/child_process.h"
#include "src/cli/shared/console.h"
#include "src/cli/shared/exit_code.h"
#include "src/cli/shared/paths.h"
#include "src/cli/shared/stop_signals.h"
#include "src/config/dump.h"
#include "src/config/parse.h"
#include "src/core/error.h"
#include "src/report/run_data.h"

namespace espalier::cli {
namespace {

namespace fs = std::filesystem;

/// Number of stop signals received.
volatile std::sig_atomic_t g_end_requests = 0;
extern "C" void request_end_of_runs(int /*signal*/) { g_end_requests = g_end_requests + 1; }

/// In the directory of a run: the config that it was started with.
constexpr const char* kStartConfig = "sweep.toml";

/// The words of a command line: quotes and backslashes as in a shell, but nothing is executed.
std::vector<std::string> words_of(const std::string& launcher) {
  wordexp_t found{};
  if (::wordexp(launcher.c_str(), &found, WRDE_NOCMD | WRDE_UNDEF) != 0) {
    throw Usage(fmt::format(
        "--launcher {}: not the words of one command; quote | & ; < > ( ) {{ }} and variables "
        "that are not set, or name a script",
        launcher));
  }
  std::vector<std::string> words(found.we_wordv, found.we_wordv + found.we_wordc);
  ::wordfree(&found);
  return words;
}

/// Whether the directory's run was started with this config. The number of threads, which follows
/// from --jobs, changes no result.
bool holds(const TrainingRun& run) {
  const fs::path file = run.directory() / kStartConfig;
  if (!io::path_exists(file)) {
    return false;
  }
  io::Config found = config::load(file);
  found.run.threads = run.config.run.threads;
  return config::to_toml(found) == config::to_toml(run.config);
}

bool finished(const TrainingRun& run) {
  return io::path_exists(run.directory() / "summary.json") && holds(run) &&
         report::read_run(run.directory()).complete();
}

std::string log_of(const TrainingRun& run) { return (run.directory() / "log.txt").string(); }

/// Writes the config of a run; makes the folder of its console output.
void prepare(const TrainingRun& run) {
  io::make_folder_of(run.directory() / kStartConfig);
  io::write_text_atomically(run.directory() / kStartConfig, config::to_toml(run.config));
}

/// `status`: of waitpid.
TrainingResult result_of(const TrainingRun& run, int status) {
  if (code_of(status) != kDone) {
    return {.error = fmt::format("{}, see {}", ending_text(status), log_of(run))};
  }
  try {  // files may have been replaced since the command began; a launcher may start no run
    check(finished(run), "{} holds no finished run, see {}", run.config.run.out, log_of(run));
    train::check_inputs(run.directory(), run.inputs);
    const report::RunData data = report::read_run(run.directory());
    const auto images = report::number_at(data.summary, "images_per_s");
    return {.loss = report::number_at(data.summary, "final_val_loss"),
            .rate = images ? images : report::number_at(data.summary, "tokens_per_s"),
            .of_images = images.has_value(),
            .error = "its summary.json has no final_val_loss"};
  } catch (const Failure& failure) {
    return {.error = failure.what()};
  }
}

std::string text_of(const TrainingResult& result) {
  return result.loss ? fmt::format("validation loss {:.4f}", *result.loss)
                     : "failed, " + result.error;
}

std::string name_of(const TrainingRun& run) { return run.directory().filename().string(); }

void end_all(const std::map<size_t, TrainingProcess>& running) {
  std::vector<pid_t> pids;
  for (const auto& [number, process] : running) {
    pids.push_back(process.pid());
  }
  end_processes(pids);
  end_descendants();
}

}  // namespace

TrainingRuns::TrainingRuns(fs::path folder, const std::string& launcher, int jobs,
                           std::vector<std::string> options)
    : folder_(std::move(folder)),
      launcher_(words_of(launcher)),
      options_(std::move(options)),
      jobs_(jobs) {}

void TrainingRuns::check_folder() const {
  check_output_folder(folder_);
  check(!is_run(folder_) && !io::path_exists(folder_ / "metrics.jsonl"),
        "{} is the directory of a run; name another directory for the runs with --out",
        folder_.string());
}

void TrainingRuns::check_runs(std::span<const TrainingRun> runs) {
  for (const TrainingRun& run : runs) {
    if (!io::path_exists(run.directory() / kStartConfig)) {
      check(!io::path_exists(run.directory() / "metrics.jsonl"),
            "{} holds a run of another command; choose another directory with --out",
            run.config.run.out);
      continue;
    }
    check(holds(run),
          "{} holds a run of another config; choose another directory with --out, or remove it",
          run.config.run.out);
    train::check_inputs(run.directory(), run.inputs);
  }
}

void TrainingRuns::begin() {
  io::make_folder_of(folder_ / kStartConfig);
  lock_.emplace(folder_);              // runs of another command would count as failed
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // for child_processes
  install_stop_handler(request_end_of_runs);
}

std::vector<std::string> TrainingRuns::command(const TrainingRun& run) const {
  std::vector<std::string> words = launcher_;
  words.insert(words.end(), {fs::read_symlink("/proc/self/exe").string(), "train",
                             (run.directory() / kStartConfig).string(), "--resume", "auto"});
  words.insert(words.end(), options_.begin(), options_.end());
  return words;
}

std::optional<std::vector<TrainingResult>> TrainingRuns::train(
    std::span<const TrainingRun> runs) const {
  std::vector<TrainingResult> results(runs.size());
  std::map<size_t, TrainingProcess> running;  // by number of the run
  size_t next = 0;
  size_t done = 0;
  const auto end_of = [&](size_t number, TrainingResult result) {
    results[number] = std::move(result);
    print_note(fmt::format("{} of {}: {}: {}", ++done, runs.size(), name_of(runs[number]),
                           text_of(results[number])));
  };
  while (next < runs.size() || !running.empty()) {
    while (g_end_requests == 0 && next < runs.size() &&
           running.size() < static_cast<size_t>(jobs_)) {
      const size_t number = next++;
      if (finished(runs[number])) {
        results[number] = result_of(runs[number], 0);
        ++done;
        continue;
      }
      try {
        prepare(runs[number]);
        running.try_emplace(number, command(runs[number]), log_of(runs[number]));
      } catch (const Failure& failure) {  // the other runs go on
        end_of(number, {.error = failure.what()});
      }
    }
    if (g_end_requests > 0 && running.empty()) {
      break;
    }
    if (g_end_requests > 1) {
      end_all(running);
      break;
    }
    const auto ended =
        std::ranges::find_if(running, [](auto& one) { return one.second.status().has_value(); });
    if (ended == running.end()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    } else {
      if (g_end_requests == 0) {
        end_of(ended->first, result_of(runs[ended->first], *ended->second.status()));
      }
      running.erase(ended);
    }
    if (g_end_requests > 0) {
      for (auto& [number, process] : running) {
        if (process.request_stop()) {
          print_note(fmt::format("{}: {}", name_of(runs[number]), kStopIgnored));
        }
      }
    }
  }
  if (g_end_requests > 0) {
    print_note("stopped by a signal; the same command continues");
    return std::nullopt;
  }
  return results;
}

}  // namespace espalier::cli
