// espalier sweep CONFIG --over KEY=VALUE,VALUE…: trains every combination of values, each with some
// seeds, several at a time, and prints a table and a page with the optimum.
//
// Each run has a directory, OUT/lr=0.001,seed=1, where its console output is log.txt. The same
// command again continues: finished runs are not repeated, others resume from their checkpoints.
// After a stop signal the runs save and end; a second one ends runs that hang.
// optimizer.min_lr keeps its ratio to a swept optimizer.lr unless it is swept itself.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <wordexp.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <thread>

#include "io/files/folders.h"
#include "io/files/raw_file.h"
#include "io/run/metrics.h"
#include "src/cli/commands.h"
#include "src/cli/shared/child_process.h"
#include "src/cli/shared/console.h"
#include "src/cli/shared/exit_code.h"
#include "src/cli/shared/options.h"
#include "src/cli/shared/paths.h"
#include "src/cli/shared/stop_signals.h"
#include "src/cli/shared/train_arguments.h"
#include "src/config/dump.h"
#include "src/config/parse.h"
#include "src/config/schema.h"
#include "src/core/checksum.h"
#include "src/core/cpus.h"
#include "src/core/error.h"
#include "src/kernels/backend.h"
#include "src/optim/schedule.h"
#include "src/report/report.h"
#include "src/report/run_data.h"
#include "src/train/checkpoint/manifest.h"

namespace espalier::cli {
namespace {

namespace fs = std::filesystem;

struct SweepArguments {
  std::string config;
  std::vector<std::string> over;
  std::vector<std::string> overrides;
  std::string out;
  std::string launcher;
  int seeds = 1;
  int jobs = 0;
  bool dry_run = false;
  bool json = false;
};

/// Number of stop signals received.
volatile std::sig_atomic_t g_sweep_requests = 0;
extern "C" void request_sweep_end(int /*signal*/) { g_sweep_requests = g_sweep_requests + 1; }

/// In the directory of a run: the config that it was started with.
constexpr const char* kConfig = "sweep.toml";

/// A swept key and its values, as TOML.
struct Axis {
  std::string key;
  std::vector<std::string> values;

  /// "lr" of "optimizer.lr".
  std::string short_name() const { return key.substr(key.rfind('.') + 1); }
};

/// Splits at commas outside of brackets and quotes.
std::vector<std::string> split_values(const std::string& text) {
  std::vector<std::string> values{""};
  int depth = 0;
  bool quoted = false;
  for (const char c : text) {
    quoted = quoted != (c == '"');
    depth += quoted ? 0 : c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
    if (c == ',' && depth == 0 && !quoted) {
      values.emplace_back();
    } else {
      values.back() += c;
    }
  }
  return values;
}

Axis axis_of(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) {
    throw Usage(fmt::format("--over {} has no values: --over optimizer.lr=1e-3,2e-3", text));
  }
  Axis axis{.key = text.substr(0, equals), .values = split_values(text.substr(equals + 1))};
  for (const std::string& value : axis.values) {
    if (value.empty()) {
      throw Usage(fmt::format("--over {} has an empty value: --over optimizer.lr=1e-3,2e-3", text));
    }
    if (std::ranges::count(axis.values, value) > 1) {
      throw Usage(fmt::format("--over {} has the value {} twice: remove one", text, value));
    }
  }
  return axis;
}

/// All but letters, digits and a few signs become '_'. A text that this changes gets 6 digits of
/// its hash, so that values of one sweep have names of their own, in any order.
std::string file_name(const std::string& text) {
  std::string name = text;
  std::ranges::replace_if(
      name,
      [](unsigned char c) { return std::isalnum(c) == 0 && std::strchr("+-.=_", c) == nullptr; },
      '_');
  return name == text
             ? text
             : fmt::format("{}-{:06x}", name, checksum(std::as_bytes(std::span(text))) >> 40U);
}

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

/// One training of the grid.
struct Point {
  std::vector<std::string> values;  ///< of each axis
  int64_t seed = 0;
  io::Config config;
  fs::path directory;
  train::Manifest inputs{};  ///< when the sweep began
};

struct Result {
  std::optional<double> loss;  ///< last validation loss
  std::optional<double> rate;  ///< tokens, or images, per second
  bool of_images = false;
  std::string error;  ///< of a run without a loss
};

class Sweep {
 public:
  explicit Sweep(const SweepArguments& arguments)
      : arguments_(arguments),
        launcher_(words_of(arguments.launcher)),
        base_(config::load(arguments.config, arguments.overrides)) {
    name_checkpoints(base_);
    note_default_network({.config = arguments.config, .overrides = arguments.overrides}, base_);
    for (const std::string& text : arguments.over) {
      axes_.push_back(axis_of(text));
      const auto same = [&](const Axis& axis) { return axis.key == axes_.back().key; };
      if (std::ranges::count_if(axes_, same) > 1) {
        throw Usage(
            fmt::format("--over {} is given twice: give all values at once", axes_.back().key));
      }
    }
    if (sweeps("run.out")) {
      throw Usage("--over run.out: the sweep names the directories itself; use --out");
    }
    if (sweeps("train.seed") && arguments.seeds > 1) {
      throw Usage("--seeds and --over train.seed exclude each other: give one of them");
    }
    const int cores = usable_cpu_count();
    jobs_ = arguments.jobs > 0
                ? arguments.jobs
                : std::max(1, cores / static_cast<int>(std::max<int64_t>(base_.run.threads, 1)));
    if (base_.run.threads == 0) {
      base_.run.threads = std::max(1, cores / jobs_);
    }
    out_ = arguments.out.empty() ? fs::path(base_.run.out + "-sweep") : fs::path(arguments.out);
    add_points({});
    results_.resize(points_.size());
  }

  int run() {
    check_output_folder(out_);
    check(!is_run(out_) && !io::path_exists(out_ / "metrics.jsonl"),
          "{} is the directory of a run; name another directory for the sweep with --out",
          out_.string());
    note_axes_without_effect();
    if (arguments_.dry_run) {
      for (const Point& point : points_) {
        print(point.directory.string() + "\n");
      }
      return kDone;
    }
    for (Point& point : points_) {
      train::add_inputs(point.config, point.inputs);
      check_directory(point);
    }
    io::make_folder_of(out_ / kConfig);
    const io::RunLock lock(out_);        // another sweep's runs would count as failed
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // for child_processes
    install_stop_handler(request_sweep_end);
    train_all();
    if (g_sweep_requests > 0) {
      print_note("stopped by a signal; the same command continues");
      return kStopped;
    }
    write_results();
    const bool any =
        std::ranges::any_of(results_, [](const Result& one) { return one.loss.has_value(); });
    return any ? kDone : kFailed;
  }

 private:
  bool sweeps(const std::string& key) const {
    return std::ranges::find(axes_, key, &Axis::key) != axes_.end();
  }

  /// A launcher may start any number of ranks: they count as several stages and replicas.
  void note_axes_without_effect() const {
    const int64_t ranks = launcher_.empty() ? 1 : 2;
    for (const Axis& axis : axes_) {
      const size_t dot = axis.key.find('.');
      const config::Field* field =
          config::find_field(axis.key.substr(0, dot), axis.key.substr(dot + 1));
      if (field == nullptr) {
        throw Usage(fmt::format("--over {}: this is no key (docs/config.md lists them)", axis.key));
      }
      const bool used = std::ranges::any_of(points_, [&](const Point& point) {
        const std::string& backend = point.config.run.backend;
        return config::has_effect(*field, point.config,
                                  {.on_device = kernels::planning(backend).device,
                                   .pruned = true,  // perhaps by train --init
                                   .replicas = ranks,
                                   .stages = ranks});
      });
      if (!used) {
        print_note(fmt::format("--over {} changes nothing in these runs: it has an effect only {}",
                               axis.key, field->effect.where));
      }
    }
  }

  /// Adds the points that begin with these values of the first axes.
  void add_points(const std::vector<std::string>& values) {
    if (values.size() < axes_.size()) {
      for (const std::string& value : axes_[values.size()].values) {
        std::vector<std::string> longer = values;
        longer.push_back(value);
        add_points(longer);
      }
      return;
    }
    for (int number = 0; number < arguments_.seeds; ++number) {
      add_point(values, number);
    }
  }

  void add_point(const std::vector<std::string>& values, int number) {
    Point point{.values = values, .config = base_};
    std::string name;
    for (size_t i = 0; i < axes_.size(); ++i) {
      const Axis& axis = axes_[i];
      config::apply_override(point.config, axis.key + "=" + values[i]);
      const auto same = [&](const Axis& other) { return other.short_name() == axis.short_name(); };
      const bool unique = std::ranges::count_if(axes_, same) == 1;
      name += fmt::format("{}{}={}", name.empty() ? "" : ",", unique ? axis.short_name() : axis.key,
                          file_name(values[i]));
    }
    const io::OptimizerConfig base = optim::with_learning_rate(base_, false).optimizer;
    io::OptimizerConfig& optimizer = point.config.optimizer;
    if (sweeps("optimizer.lr") && !sweeps("optimizer.min_lr") && base.lr > 0 &&
        optimizer.lr != io::kAutomatic) {
      optimizer.min_lr = optimizer.lr * (base.min_lr / base.lr);
    }
    point.config.train.seed += number;
    config::check_limits(*config::find_field("train", "seed"), point.config, "--seeds");
    point.seed = point.config.train.seed;
    if (arguments_.seeds > 1 || axes_.empty()) {
      name += fmt::format("{}seed={}", name.empty() ? "" : ",", point.seed);
    }
    point.directory = out_ / name;
    point.config.run.out = point.directory.string();
    config::validate(point.config);
    points_.push_back(std::move(point));
  }

  static bool finished(const Point& point) {
    return io::path_exists(point.directory / "summary.json") && holds_run_of(point) &&
           report::read_run(point.directory).complete();
  }

  /// Whether the directory's run was started with this config. The number of threads, which follows
  /// from --jobs, changes no result.
  static bool holds_run_of(const Point& point) {
    const fs::path file = point.directory / kConfig;
    if (!io::path_exists(file)) {
      return false;
    }
    io::Config found = config::load(file);
    found.run.threads = point.config.run.threads;
    return config::to_toml(found) == config::to_toml(point.config);
  }

  /// A directory of the sweep must hold a run of the same config and data, or none.
  static void check_directory(const Point& point) {
    if (!io::path_exists(point.directory / kConfig)) {
      check(!io::path_exists(point.directory / "metrics.jsonl"),
            "{} holds a run that is not of a sweep; choose another directory with --out",
            point.directory.string());
      return;
    }
    check(holds_run_of(point),
          "{} holds a run of another config; choose another directory with --out, or remove it",
          point.directory.string());
    train::check_inputs(point.directory, point.inputs);
  }

  std::vector<std::string> command(const Point& point) const {
    std::vector<std::string> words = launcher_;
    words.insert(words.end(), {fs::read_symlink("/proc/self/exe").string(), "train",
                               (point.directory / kConfig).string(), "--resume", "auto"});
    return words;
  }

  /// Writes the config of a run; returns the file that its console output is appended to.
  static fs::path prepare(const Point& point) {
    const fs::path log = point.directory / "log.txt";
    io::make_folder_of(log);
    io::write_text_atomically(point.directory / kConfig, config::to_toml(point.config));
    return log;
  }

  void train_all() {
    std::map<size_t, TrainingProcess> running;  // by number of the point
    size_t next = 0;
    size_t done = 0;
    const auto end_of = [&](size_t number, Result result) {
      results_[number] = std::move(result);
      print_note(fmt::format("{} of {}: {}: {}", ++done, points_.size(),
                             points_[number].directory.filename().string(),
                             text_of(results_[number])));
    };
    while (next < points_.size() || !running.empty()) {
      while (g_sweep_requests == 0 && next < points_.size() &&
             running.size() < static_cast<size_t>(jobs_)) {
        const size_t number = next++;
        if (finished(points_[number])) {
          results_[number] = result_of(points_[number], 0);
          ++done;
          continue;
        }
        try {
          const fs::path log = prepare(points_[number]);
          running.try_emplace(number, command(points_[number]), log);
        } catch (const Failure& failure) {  // the other runs go on
          end_of(number, {.error = failure.what()});
        }
      }
      if (g_sweep_requests > 0 && running.empty()) {
        return;
      }
      if (g_sweep_requests > 1) {
        end_all(running);
        return;
      }
      const auto ended =
          std::ranges::find_if(running, [](auto& one) { return one.second.status().has_value(); });
      if (ended == running.end()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      } else {
        if (g_sweep_requests == 0) {
          end_of(ended->first, result_of(points_[ended->first], *ended->second.status()));
        }
        running.erase(ended);
      }
      if (g_sweep_requests > 0) {
        for (auto& [number, process] : running) {
          if (process.request_stop()) {
            print_note(
                fmt::format("{}: {}", points_[number].directory.filename().string(), kStopIgnored));
          }
        }
      }
    }
  }

  static void end_all(const std::map<size_t, TrainingProcess>& running) {
    std::vector<pid_t> pids;
    for (const auto& [number, process] : running) {
      pids.push_back(process.pid());
    }
    end_processes(pids);
    end_descendants();
  }

  /// `status`: of waitpid.
  static Result result_of(const Point& point, int status) {
    if (code_of(status) != kDone) {
      return {.error = fmt::format("{}, see {}", ending_text(status),
                                   (point.directory / "log.txt").string())};
    }
    try {  // files may have been replaced since the sweep began, and a launcher may start no run
      check(finished(point), "{} holds no finished run, see {}", point.directory.string(),
            (point.directory / "log.txt").string());
      train::check_inputs(point.directory, point.inputs);
      const report::RunData run = report::read_run(point.directory);
      const auto images = report::number_at(run.summary, "images_per_s");
      return {.loss = report::number_at(run.summary, "final_val_loss"),
              .rate = images ? images : report::number_at(run.summary, "tokens_per_s"),
              .of_images = images.has_value(),
              .error = "its summary.json has no final_val_loss"};
    } catch (const Failure& failure) {
      return {.error = failure.what()};
    }
  }

  static std::string text_of(const Result& result) {
    return result.loss ? fmt::format("validation loss {:.4f}", *result.loss)
                       : "failed, " + result.error;
  }

  /// The seeds of one combination of values.
  struct Combination {
    std::vector<std::string> values;
    std::vector<double> losses;
    std::vector<double> rates;
    int failed = 0;

    double mean() const {
      double sum = 0;
      for (const double loss : losses) {
        sum += loss;
      }
      return losses.empty() ? INFINITY : sum / static_cast<double>(losses.size());
    }
    /// Sample standard deviation; none of fewer than two.
    std::optional<double> deviation() const {
      if (losses.size() < 2) {
        return {};
      }
      double squares = 0;
      for (const double loss : losses) {
        squares += (loss - mean()) * (loss - mean());
      }
      return std::sqrt(squares / static_cast<double>(losses.size() - 1));
    }
    /// A failed seed excludes the combination from the optimum.
    bool valid() const { return failed == 0 && !losses.empty(); }
  };

  std::vector<Combination> combinations() const {
    std::vector<Combination> all;
    for (size_t i = 0; i < points_.size(); ++i) {
      if (all.empty() || all.back().values != points_[i].values) {
        all.push_back({.values = points_[i].values});
      }
      Combination& to = all.back();
      if (results_[i].loss) {
        to.losses.push_back(*results_[i].loss);
        to.rates.push_back(results_[i].rate.value_or(0));
      } else {
        ++to.failed;
      }
    }
    return all;
  }

  /// For each combination of the other axes the value of the last axis with the least loss: marked
  /// in the table, with a warning where it is the first or the last value.
  void write_results() const {
    const std::vector<Combination> all = combinations();
    const size_t group = axes_.empty() ? 1 : axes_.back().values.size();
    Rows rows(1);
    for (const Axis& axis : axes_) {
      rows[0].push_back(axis.key);
    }
    const bool of_images = std::ranges::any_of(results_, &Result::of_images);
    rows[0].insert(rows[0].end(), {"validation loss", "sd", "seeds", "failed",
                                   of_images ? "images/s" : "tokens/s", ""});
    nlohmann::ordered_json lines = nlohmann::ordered_json::array();
    std::vector<std::string> warnings;
    for (size_t i = 0; i < all.size(); ++i) {
      const size_t first = i / group * group;
      size_t best = first;
      for (size_t j = first; j < first + group; ++j) {
        const bool better =
            all[j].valid() && (!all[best].valid() || all[j].mean() < all[best].mean());
        best = better ? j : best;
      }
      const bool optimum = i == best && all[i].valid();
      if (optimum && group > 2 && (i == first || i + 1 == first + group)) {
        warnings.push_back(fmt::format("the optimum {} = {} is at the edge of the grid: add values",
                                       axes_.back().key, all[i].values.back()));
      }
      rows.push_back(row_of(all[i], optimum));
      lines.push_back(json_of(all[i], optimum));
    }
    const nlohmann::ordered_json object{{"sweep", lines}, {"warnings", warnings}};
    io::write_text_atomically(out_ / "sweep.json", object.dump(2) + "\n");
    write_page();
    if (arguments_.json) {
      print_json(object);
      return;
    }
    print(table(rows));
    for (const std::string& warning : warnings) {
      print_note(warning);
    }
  }

  static std::vector<std::string> row_of(const Combination& one, bool optimum) {
    std::vector<std::string> row = one.values;
    const auto deviation = one.deviation();
    row.insert(row.end(), {one.losses.empty() ? "-" : fmt::format("{:.4f}", one.mean()),
                           deviation ? fmt::format("{:.4f}", *deviation) : "-",
                           fmt::format("{}", one.losses.size()), fmt::format("{}", one.failed),
                           one.rates.empty() ? "-" : fmt::format("{:.0f}", one.rates.front()),
                           optimum ? "best" : ""});
    return row;
  }

  nlohmann::ordered_json json_of(const Combination& one, bool optimum) const {
    nlohmann::ordered_json line;
    for (size_t i = 0; i < axes_.size(); ++i) {
      line[axes_[i].key] = one.values[i];
    }
    line["losses"] = one.losses;
    line["failed"] = one.failed;
    line["best"] = optimum;
    return line;
  }

  void write_page() const {
    std::vector<fs::path> directories;
    for (size_t i = 0; i < points_.size(); ++i) {
      if (results_[i].loss) {
        directories.push_back(points_[i].directory);
      }
    }
    if (!directories.empty()) {
      report::write_report(report::read_runs(directories), out_ / "report.html");
      print_note(fmt::format("wrote {} and {}", (out_ / "sweep.json").string(),
                             (out_ / "report.html").string()));
    }
  }

  const SweepArguments& arguments_;
  std::vector<std::string> launcher_;
  io::Config base_;
  std::vector<Axis> axes_;
  int jobs_ = 1;
  fs::path out_;
  std::vector<Point> points_;
  std::vector<Result> results_;
};

}  // namespace

void register_sweep(CLI::App& app, Action& chosen) {
  auto arguments = std::make_shared<SweepArguments>();
  CLI::App* command = app.add_subcommand(
      "sweep",
      "Train every combination of some values of config keys; print a table, write a page");
  command->add_option("config", arguments->config, "TOML file")->required();
  command
      ->add_option("--over", arguments->over,
                   "KEY=VALUE,VALUE…, e.g. optimizer.lr=1e-3,2e-3; may be repeated. The best value "
                   "of the last KEY is marked")
      ->allow_extra_args(false);
  option(*command, "--seeds", arguments->seeds, "seeds of each combination, from train.seed on",
         CLI::Range(1, 1000));
  command->add_option("--set", arguments->overrides, "section.key=value, of all runs")
      ->allow_extra_args(false);
  command->add_option("--out", arguments->out, "directory of the runs (run.out-sweep)");
  option(*command, "--jobs", arguments->jobs,
         "runs at a time (cores / run.threads, which is 1 unless set)", CLI::PositiveNumber);
  command->add_option("--launcher", arguments->launcher,
                      "command before each espalier, e.g. \"mpirun -n 2\"");
  command->add_flag("--dry-run", arguments->dry_run, "list the run directories only");
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->callback(
      [arguments, &chosen] { chosen = [arguments] { return Sweep(*arguments).run(); }; });
}

}  // namespace espalier::cli
