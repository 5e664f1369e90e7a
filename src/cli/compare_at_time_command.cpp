// espalier compare-at-time CONFIG: does sparsity pay for these data on this machine? Trains the
// networks of planner/equal_time.h for the same time, each at its best learning rate, one run after
// the other; prints a table with the answer, and writes it as a page.
//
//   trial   seconds of a step: short trainings of each network, in turn, in OUT/trial; the first
//           decile of the fastest counts. A later call reads them again, so it has the same steps.
//   rates   powers of two times the config's, with its seed, until the best is bracketed
//   seeds   the others, at the best rate
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <span>

#include "io/checkpoint/checkpoint.h"
#include "io/data/fingerprint.h"
#include "io/files/folders.h"
#include "io/run/metrics.h"
#include "src/cli/commands.h"
#include "src/cli/shared/console.h"
#include "src/cli/shared/exit_code.h"
#include "src/cli/shared/options.h"
#include "src/cli/shared/paths.h"
#include "src/cli/shared/train_arguments.h"
#include "src/cli/shared/training_runs.h"
#include "src/config/dump.h"
#include "src/config/limits.h"
#include "src/config/parse.h"
#include "src/config/schema.h"
#include "src/core/checksum.h"
#include "src/core/error.h"
#include "src/planner/equal_time.h"
#include "src/planner/trial.h"
#include "src/report/report.h"

namespace espalier::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using planner::Contender;

constexpr int kRounds = 3;            ///< of the trial
constexpr int64_t kWarmUp = 3;        ///< steps of a timed training that do not count
constexpr double kTimedSeconds = 1;   ///< of a timed training after the first round, about
constexpr int64_t kFewSteps = 50;     ///< that say little
constexpr double kWorthNaming = 0.1;  ///< difference of times

struct CompareArguments {
  TrainArguments train;  ///< config, overrides, init
  double seconds = 0;
  int seeds = 3;
  std::string out, launcher;
  bool dry_run = false;
  bool json = false;
};

/// The first decile of the steps: the time without other load.
double step_seconds(const fs::path& directory) {
  const report::RunData run = report::read_run(directory);
  std::vector<double> seconds;
  for (size_t i = kWarmUp; i < run.steps.size(); ++i) {
    seconds.push_back(run.steps[i].seconds - run.steps[i - 1].seconds);
  }
  std::ranges::sort(seconds);
  check(!seconds.empty() && seconds[seconds.size() / 10] > 0, "{} holds no times of steps",
        directory.string());
  return seconds[seconds.size() / 10];
}

/// A network whose steps are timed.
struct Network {
  io::Config config;
  std::vector<double> seconds{};  ///< of a step, [rounds]
  std::string failure{};          ///< empty: it can be timed

  double least() const { return *std::ranges::min_element(seconds); }
};

struct RateAndSeed {
  int exponent = 0;  ///< rate: the config's times 2^exponent
  int seed = 0;
  auto operator<=>(const RateAndSeed&) const = default;
};

/// A contender with its runs.
struct Entry {
  Contender contender;
  train::Manifest inputs{};
  double seconds = 0;  ///< of its steps, as planned
  std::map<RateAndSeed, double> losses{};

  planner::RateLosses rates() const {
    planner::RateLosses found;
    for (const auto& [run, loss] : losses) {
      if (run.seed == 0) {
        found[run.exponent] = loss;
      }
    }
    return found;
  }
  int best() const { return losses.empty() ? 0 : planner::best_rate(rates()); }
  /// Of all seeds at the best rate; none if one failed.
  std::vector<double> tuned() const {
    std::vector<double> found;
    for (const auto& [run, loss] : losses) {
      if (run.exponent == best()) {
        found.push_back(loss);
      }
    }
    return std::isfinite(planner::mean_of(found)) ? found : std::vector<double>();
  }
  std::optional<RateAndSeed> next(int seeds) const {
    if (const auto exponent = planner::next_rate(rates())) {
      return RateAndSeed{*exponent, 0};
    }
    const auto done = static_cast<int>(tuned().size());  // 0: the first or a later one failed
    return done > 0 && done < seeds ? std::optional(RateAndSeed{best(), done}) : std::nullopt;
  }
};

class Comparison {
 public:
  explicit Comparison(const CompareArguments& arguments)
      : arguments_(arguments),
        init_(arguments.train.init),
        base_(config_of(arguments.train)),
        out_(arguments.out.empty() ? base_.run.out + "-at-time" : arguments.out),
        trainings_(out_, arguments.launcher, 1,
                   init_.empty() ? std::vector<std::string>()
                                 : std::vector<std::string>{"--init", init_}) {
    note_default_network(arguments.train, base_);
    io::Config last = base_;
    last.train.seed += arguments.seeds - 1;
    config::check_limits(*config::find_field("train", "seed"), last, "--seeds");
    read_init();
    planner::Contenders all = planner::contenders_of(base_, !init_.empty());
    for (Contender& contender : all.found) {
      entries_.push_back({.contender = std::move(contender)});
      train::add_inputs(entries_.back().contender.config, entries_.back().inputs);
    }
    for (const planner::LeftOut& one : all.left_out) {
      notes_.push_back(fmt::format("left out: {}: {}", one.name, one.reason));
    }
  }

  int run() {
    trainings_.check_folder();
    trainings_.begin();
    if (!time_steps()) {
      return kStopped;
    }
    set_steps();
    // Three rates and the further seeds of each contender.
    const auto least = static_cast<double>(entries_.size()) * (2 + arguments_.seeds);
    print_note(fmt::format("{:.3g} s of steps a training; {} trainings or more: {:.3g} minutes",
                           budget_, least, least * budget_ / 60));
    return arguments_.dry_run || train_all() ? write_results() : kStopped;
  }

 private:
  /// Dense networks start from the file, too. Its content and the launcher, which no config has,
  /// are in the names of directories.
  void read_init() {
    const std::vector<std::string> files(init_.empty() ? 0 : 1, init_);
    const std::string facts = arguments_.launcher + io::fingerprint(files, "--init");
    if (!facts.empty()) {
      suffix_ = fmt::format(",of={:06x}", checksum(std::as_bytes(std::span(facts))) >> 40U);
    }
    if (init_.empty() || !io::is_checkpoint(init_)) {
      return;
    }
    const io::CheckpointReader reader(init_);
    for (const std::string& name : reader.names()) {
      const io::StoredParameter info = reader.info(name);
      check(info.nnz == info.shape.count(),
            "--init {}: {} is pruned, and dense networks start from the file, too; name the "
            "checkpoint from before it was pruned",
            init_, name);
    }
  }

  /// Calls use(result, run's number) for each; false after a stop signal.
  template <class Use>
  bool train(const std::vector<TrainingRun>& runs, const Use& use) const {
    TrainingRuns::check_runs(runs);
    const auto results = trainings_.train(runs);
    for (size_t i = 0; results && i < runs.size(); ++i) {
      use((*results)[i], i);
    }
    return results.has_value();
  }

  /// False after a stop signal.
  bool time_steps() {
    for (const Entry& entry : entries_) {
      const Contender& contender = entry.contender;
      const planner::StepCounts steps = planner::step_counts(contender.config);
      if (steps.unpruned > 0) {
        io::Config& config = networks_[contender.unpruned].config = contender.config;
        config.pruning = {};
      }
      if (steps.pruned > 0) {
        networks_[contender.pruned].config = contender.config;
      }
    }
    for (int round = 0; round < kRounds; ++round) {
      std::vector<TrainingRun> runs;
      std::vector<Network*> of;
      for (auto& [name, network] : networks_) {
        if (network.failure.empty()) {
          const double steps = round == 0 ? 0 : kTimedSeconds / network.least();
          runs.push_back({planner::trial_of(
              network.config, kWarmUp + static_cast<int64_t>(std::clamp(steps, 8.0, 200.0)))});
          io::Config& config = runs.back().config;
          config.run.out =
              (out_ / "trial" / fmt::format("{}{},{}", name, suffix_, round + 1)).string();
          train::add_inputs(config, runs.back().inputs);
          of.push_back(&network);
        }
      }
      print_note(fmt::format("timing steps, round {} of {}; these losses do not count", round + 1,
                             kRounds));
      if (!train(runs, [&](const TrainingResult& result, size_t i) {
            if (result.loss) {
              of[i]->seconds.push_back(step_seconds(runs[i].directory()));
            } else {
              of[i]->failure = result.error;
            }
          })) {
        return false;
      }
    }
    return true;
  }

  /// Of a step; 0: the contender has no such step. Throws Failure if it could not be timed.
  double seconds_of(const std::string& name) const {
    const auto found = networks_.find(name);
    if (found == networks_.end()) {
      return 0;
    }
    check(found->second.failure.empty(), "its steps cannot be timed: {}", found->second.failure);
    return found->second.least();
  }

  /// The steps of each contender in equal time. Leaves out those that cannot be trained so.
  void set_steps() {
    budget_ = arguments_.seconds > 0 ? arguments_.seconds
                                     : seconds_of("dense") * static_cast<double>(base_.train.steps);
    bool any_sparse = false;
    for (Entry& entry : entries_) {
      const std::string& name = entry.contender.name;
      io::Config& config = entry.contender.config;
      try {
        const planner::StepSeconds step{seconds_of(entry.contender.unpruned),
                                        seconds_of(entry.contender.pruned)};
        const int64_t steps = planner::steps_within(config, step, budget_);
        check(steps > 0, "{:.3g} s are less than one step; give more --seconds", budget_);
        config = planner::with_steps(config, steps);
        config::validate(config);
        config::check_prunes_in_time(config);
        entry.seconds = step.of(planner::step_counts(config));
        any_sparse = any_sparse || entry.contender.kind == Contender::Kind::sparse;
        if (steps < kFewSteps) {
          notes_.push_back(
              fmt::format("{}: {} steps say little; give more --seconds", name, steps));
        }
      } catch (const Failure& failure) {
        check(name != "dense", "the dense network cannot be compared: {}", failure.what());
        notes_.push_back(fmt::format("left out: {}: {}", name, failure.what()));
      }
    }
    check(any_sparse, "no sparse network can be compared; {}", fmt::join(notes_, "; "));
    std::erase_if(entries_, [](const Entry& entry) { return entry.seconds == 0; });
    double spread = 0;
    for (const auto& [name, network] : networks_) {
      if (network.failure.empty()) {
        spread = std::max(spread, std::ranges::max(network.seconds) / network.least() - 1);
      }
    }
    notes_.push_back(
        fmt::format("the time of a step differed by up to {:.0f} % between trials; "
                    "the least counts",
                    100 * spread));
  }

  TrainingRun run_of(const Entry& entry, RateAndSeed number) const {
    TrainingRun run{entry.contender.config, entry.inputs};
    io::OptimizerConfig& optimizer = run.config.optimizer;
    optimizer.lr *= std::exp2(number.exponent);
    optimizer.min_lr *= std::exp2(number.exponent);
    run.config.train.seed += number.seed;
    run.config.run.out = (out_ / fmt::format("{}{},lr={},seed={}", entry.contender.name, suffix_,
                                             optimizer.lr, run.config.train.seed))
                             .string();
    return run;
  }

  /// One run of each contender, then the next ones. False after a stop signal.
  bool train_all() {
    while (true) {
      std::vector<TrainingRun> runs;
      std::vector<double*> losses;
      for (Entry& entry : entries_) {
        if (const auto next = entry.next(arguments_.seeds)) {
          runs.push_back(run_of(entry, *next));
          losses.push_back(&entry.losses[*next]);
        }
      }
      if (runs.empty() || !train(runs, [&](const TrainingResult& result, size_t i) {
            *losses[i] = result.loss.value_or(INFINITY);
          })) {
        return runs.empty();
      }
    }
  }

  /// Of a dry run: steps and seconds.
  int write_results() {
    std::ranges::stable_sort(entries_, {},
                             [](const Entry& one) { return planner::mean_of(one.tuned()); });
    std::vector<planner::TunedLosses> tuned;
    for (const Entry& entry : entries_) {
      tuned.push_back({entry.contender.name, entry.contender.kind, entry.tuned()});
    }
    const auto* smaller = planner::best_of(tuned, Contender::Kind::smaller_dense);
    report::Answer answer{
        .sentences = arguments_.dry_run ? std::vector<std::string>() : planner::answer(tuned),
        .rows = {{"network", "", "steps", "samples", "seconds", "lr", "loss", "sd",
                  "minus smaller dense", "state"}}};
    Json lines = Json::array();
    std::vector<report::RunData> curves;
    for (const Entry& entry : entries_) {
      add_result(entry, smaller, answer.rows, lines, curves);
    }
    const Json object{
        {"answer", answer.sentences}, {"seconds", budget_}, {"networks", lines}, {"notes", notes_}};
    if (arguments_.json) {
      print_json(object);
    } else {
      answer.sentences.push_back(table(answer.rows));
      print(fmt::format("{}", fmt::join(answer.sentences, "\n")));
      answer.sentences.pop_back();
    }
    for (const std::string& note : notes_) {
      print_note(note);
    }
    if (!curves.empty()) {
      io::write_json_atomically(out_ / "comparison.json", object);
      answer.sentences.insert(answer.sentences.end(), notes_.begin(), notes_.end());
      report::write_report(curves, out_ / "report.html", answer);
      print_note(fmt::format("wrote {0}/comparison.json and {0}/report.html", out_.string()));
    }
    return arguments_.dry_run || !curves.empty() ? kDone : kFailed;
  }

  /// Adds a row, its object, and the run of the first seed. Notes what is wrong with it.
  void add_result(const Entry& entry, const planner::TunedLosses* smaller, Rows& rows, Json& lines,
                  std::vector<report::RunData>& curves) {
    const std::vector<double> losses = entry.tuned();
    const auto seeds = static_cast<int>(losses.size());
    const int best = entry.best();
    const io::Config config = run_of(entry, {best, 0}).config;
    double seconds = losses.empty() ? entry.seconds : 0;
    std::optional<double> state;
    for (int seed = 0; seed < seeds; ++seed) {
      report::RunData run = report::read_run(run_of(entry, {best, seed}).directory());
      seconds += run.steps.back().seconds / seeds;
      if (seed == 0) {
        state = report::number_at(run.summary, "model_state_bytes");
        run.name = entry.contender.name;
        curves.push_back(std::move(run));
      }
    }
    const auto note = [&](bool when, const std::string& text) {
      if (when) {
        notes_.push_back(fmt::format("{}: {}", entry.contender.name, text));
      }
    };
    note(losses.empty() && !arguments_.dry_run, "no result, because runs failed (log.txt)");
    note(std::abs(best) == planner::kMostDoublings,
         "the best rate is the last that was tried; set another optimizer.lr");
    note(std::abs(seconds / entry.seconds - 1) > kWorthNaming,
         fmt::format("its steps took {:.3g} s instead of {:.3g}: the loss is that of another time",
                     seconds, entry.seconds));
    std::vector<std::string> shape;
    for (const std::string& change : config::changes(base_, config)) {
      if (change.starts_with("model.")) {
        shape.push_back(change.substr(change.find('.') + 1));
      }
    }
    const int64_t samples = config.train.steps * config.train.global_batch *
                            (config.data.kind == "images" ? 1 : config.model.context);
    const double mean = planner::mean_of(losses);
    const Json apart = smaller == nullptr || losses.empty() ? Json() : Json(mean - smaller->mean());
    const auto text = [](const Json& number, const char* format) {
      return number.is_null() ? "-" : fmt::format(fmt::runtime(format), number.get<double>());
    };
    const auto deviation = planner::deviation_of(losses);
    rows.push_back({entry.contender.name, fmt::format("{}", fmt::join(shape, " ")),
                    grouped(config.train.steps), grouped(samples), fmt::format("{:.1f}", seconds),
                    fmt::format("{:g}", config.optimizer.lr),
                    losses.empty() ? "-" : fmt::format("{:.4f}", mean),
                    text(deviation ? Json(*deviation) : Json(), "{:.4f}"), text(apart, "{:+.4f}"),
                    state ? bytes_text(*state) : "-"});
    Json rates = Json::object();
    for (const auto& [exponent, loss] : entry.rates()) {
      rates[fmt::format("{}", run_of(entry, {exponent, 0}).config.optimizer.lr)] = loss;
    }
    lines.push_back({{"name", entry.contender.name},
                     {"shape", shape},
                     {"steps", config.train.steps},
                     {"samples", samples},
                     {"planned_seconds", entry.seconds},
                     {"seconds", seconds},
                     {"rates", rates},
                     {"lr", config.optimizer.lr},
                     {"losses", losses},
                     {"minus_smaller_dense", apart},
                     {"model_state_bytes", state ? Json(*state) : Json()}});
  }

  const CompareArguments& arguments_;
  std::string init_;
  io::Config base_;
  fs::path out_;
  TrainingRuns trainings_;
  std::string suffix_;  ///< of directories
  std::vector<Entry> entries_;
  std::map<std::string, Network> networks_;
  double budget_ = 0;               ///< seconds
  std::vector<std::string> notes_;  ///< networks that are left out, doubts about results
};

}  // namespace

void register_compare_at_time(CLI::App& app, Action& chosen) {
  auto arguments = std::make_shared<CompareArguments>();
  CLI::App* command = app.add_subcommand("compare-at-time",
                                         "Does sparsity pay? Train dense, smaller dense and sparse "
                                         "networks for the same time, each at "
                                         "its best learning rate; print a table, write a page");
  command->add_option("config", arguments->train.config, "TOML file")->required();
  option(*command, "--seconds", arguments->seconds,
         "time of a training's steps (that of the dense network for train.steps)",
         CLI::PositiveNumber);
  option(*command, "--seeds", arguments->seeds, "seeds at the best rate, from train.seed on",
         CLI::Range(1, 1000));
  command->add_option("--set", arguments->train.overrides, "section.key=value, of all runs")
      ->allow_extra_args(false);
  command
      ->add_option("--init", arguments->train.init,
                   "dense weights to start from; all networks then have their width")
      ->transform(checkpoint_path);
  command->add_option("--out", arguments->out, "directory of the runs (run.out-at-time)");
  command->add_option("--launcher", arguments->launcher,
                      "command before each espalier, e.g. \"mpirun -n 2\"");
  command->add_flag("--dry-run", arguments->dry_run,
                    "time the steps, then list steps and the least time only");
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->callback(
      [arguments, &chosen] { chosen = [arguments] { return Comparison(*arguments).run(); }; });
}

}  // namespace espalier::cli
