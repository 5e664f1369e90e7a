// espalier sweep CONFIG --over KEY=VALUE,VALUE…: trains every combination of values, each with some
// seeds, several at a time, and prints a table and a page with the optimum.
//
// Each run has a directory, OUT/lr=0.001,seed=1 (src/cli/shared/training_runs.h).
// optimizer.min_lr keeps its ratio to a swept optimizer.lr unless it is swept itself.
#include <algorithm>
#include <cctype>
#include <cstring>
#include <optional>
#include <span>

#include "io/run/metrics.h"
#include "src/cli/commands.h"
#include "src/cli/shared/console.h"
#include "src/cli/shared/exit_code.h"
#include "src/cli/shared/options.h"
#include "src/cli/shared/paths.h"
#include "src/cli/shared/train_arguments.h"
#include "src/cli/shared/training_runs.h"
#include "src/config/dump.h"
#include "src/config/parse.h"
#include "src/config/schema.h"
#include "src/core/checksum.h"
#include "src/core/cpus.h"
#include "src/core/error.h"
#include "src/kernels/backend.h"
#include "src/optim/schedule.h"
#include "src/planner/equal_time.h"
#include "src/report/report.h"
#include "src/report/run_data.h"

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

class Sweep {
 public:
  explicit Sweep(const SweepArguments& arguments)
      : arguments_(arguments), base_(config::load(arguments.config, arguments.overrides)) {
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
    const int jobs =
        arguments.jobs > 0
            ? arguments.jobs
            : std::max(1, cores / static_cast<int>(std::max<int64_t>(base_.run.threads, 1)));
    if (base_.run.threads == 0) {
      base_.run.threads = std::max(1, cores / jobs);
    }
    out_ = arguments.out.empty() ? fs::path(base_.run.out + "-sweep") : fs::path(arguments.out);
    trainings_.emplace(out_, arguments.launcher, jobs);
    add_points({});
  }

  int run() {
    trainings_->check_folder();
    note_axes_without_effect();
    if (arguments_.dry_run) {
      for (const TrainingRun& run : runs_) {
        print(run.config.run.out + "\n");
      }
      return kDone;
    }
    for (TrainingRun& run : runs_) {
      train::add_inputs(run.config, run.inputs);
    }
    TrainingRuns::check_runs(runs_);
    trainings_->begin();
    const auto results = trainings_->train(runs_);
    if (!results) {
      return kStopped;
    }
    results_ = *results;
    write_results();
    const bool any = std::ranges::any_of(
        results_, [](const TrainingResult& one) { return one.loss.has_value(); });
    return any ? kDone : kFailed;
  }

 private:
  bool sweeps(const std::string& key) const {
    return std::ranges::find(axes_, key, &Axis::key) != axes_.end();
  }

  /// A launcher may start any number of ranks: they count as several stages and replicas.
  void note_axes_without_effect() const {
    const int64_t ranks = trainings_->launches_ranks() ? 2 : 1;
    for (const Axis& axis : axes_) {
      const size_t dot = axis.key.find('.');
      const config::Field* field =
          config::find_field(axis.key.substr(0, dot), axis.key.substr(dot + 1));
      if (field == nullptr) {
        throw Usage(fmt::format("--over {}: this is no key (docs/config.md lists them)", axis.key));
      }
      const bool used = std::ranges::any_of(runs_, [&](const TrainingRun& run) {
        const std::string& backend = run.config.run.backend;
        return config::has_effect(*field, run.config,
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
    io::Config config = base_;
    std::string name;
    for (size_t i = 0; i < axes_.size(); ++i) {
      const Axis& axis = axes_[i];
      config::apply_override(config, axis.key + "=" + values[i]);
      const auto same = [&](const Axis& other) { return other.short_name() == axis.short_name(); };
      const bool unique = std::ranges::count_if(axes_, same) == 1;
      name += fmt::format("{}{}={}", name.empty() ? "" : ",", unique ? axis.short_name() : axis.key,
                          file_name(values[i]));
    }
    const io::OptimizerConfig base = optim::with_learning_rate(base_, false).optimizer;
    io::OptimizerConfig& optimizer = config.optimizer;
    if (sweeps("optimizer.lr") && !sweeps("optimizer.min_lr") && base.lr > 0 &&
        optimizer.lr != io::kAutomatic) {
      optimizer.min_lr = optimizer.lr * (base.min_lr / base.lr);
    }
    config.train.seed += number;
    config::check_limits(*config::find_field("train", "seed"), config, "--seeds");
    if (arguments_.seeds > 1 || axes_.empty()) {
      name += fmt::format("{}seed={}", name.empty() ? "" : ",", config.train.seed);
    }
    config.run.out = (out_ / name).string();
    config::validate(config);
    runs_.push_back({.config = std::move(config)});
    values_.push_back(values);
  }

  /// The seeds of one combination of values.
  struct Combination {
    std::vector<std::string> values;
    std::vector<double> losses;
    std::vector<double> rates;
    int failed = 0;

    double mean() const { return planner::mean_of(losses); }
    /// A failed seed excludes the combination from the optimum.
    bool valid() const { return failed == 0 && !losses.empty(); }
  };

  std::vector<Combination> combinations() const {
    std::vector<Combination> all;
    for (size_t i = 0; i < runs_.size(); ++i) {
      if (all.empty() || all.back().values != values_[i]) {
        all.push_back({.values = values_[i]});
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
    const bool of_images = std::ranges::any_of(results_, &TrainingResult::of_images);
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
    const auto deviation = planner::deviation_of(one.losses);
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
    for (size_t i = 0; i < runs_.size(); ++i) {
      if (results_[i].loss) {
        directories.push_back(runs_[i].directory());
      }
    }
    if (!directories.empty()) {
      report::write_report(report::read_runs(directories), out_ / "report.html");
      print_note(fmt::format("wrote {} and {}", (out_ / "sweep.json").string(),
                             (out_ / "report.html").string()));
    }
  }

  const SweepArguments& arguments_;
  io::Config base_;
  std::vector<Axis> axes_;
  fs::path out_;
  std::optional<TrainingRuns> trainings_;
  std::vector<TrainingRun> runs_;
  std::vector<std::vector<std::string>> values_;  ///< [runs][axes]
  std::vector<TrainingResult> results_;
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
