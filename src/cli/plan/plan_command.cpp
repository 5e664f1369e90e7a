// espalier plan: predicts a training step on a machine, and searches for the fastest layout; beside
// the measurements of a run, if its directory is given; with --try, measures the best layouts; with
// --calibrate, measures this machine.
#include <array>
#include <charconv>
#include <functional>
#include <optional>

#include "io/run/metrics.h"
#include "parallel/transport/busy.h"
#include "parallel/transport/collectives.h"
#include "src/cli/commands.h"
#include "src/cli/plan/plan_output.h"
#include "src/cli/shared/console.h"
#include "src/cli/shared/listing.h"
#include "src/cli/shared/options.h"
#include "src/cli/shared/paths.h"
#include "src/cli/shared/train_arguments.h"
#include "src/cli/shared/weights_file.h"
#include "src/config/dump.h"
#include "src/config/parse.h"
#include "src/planner/calibration.h"
#include "src/planner/step_spans.h"
#include "src/planner/trial.h"
#include "src/report/plan_page.h"
#include "src/train/exchange/agreement.h"

namespace espalier::cli {
namespace {

struct PlanArguments {
  TrainArguments train;
  std::string machine, output, trace;
  std::string ranks;  ///< empty: 1, or those of the run
  planner::TensorSplit tensor;
  bool search = false, codecs = false, json = false, calibrate = false, quick = false;
  int threads = 1, rounds = 1;
  int tries = 0;  ///< layouts to measure; 0: none
  const CLI::App* command = nullptr;
};

/// Measures layouts.
using Trial = std::function<std::vector<planner::Tried>(const std::vector<io::Config>& layouts)>;

/// "8": that number; "64..2048": 64, 128, … 2048.
std::vector<int> ranks_of(const std::string& text) {
  const auto number = [&](std::string_view part) {
    int value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    check(error == std::errc() && end == part.data() + part.size() && value > 0,
          "--ranks {}: it must be a number of ranks, or a range such as 64..2048", text);
    return value;
  };
  const size_t dots = text.find("..");
  if (dots == std::string::npos) {
    return {number(text)};
  }
  const int first = number(std::string_view(text).substr(0, dots));
  const int last = number(std::string_view(text).substr(dots + 2));
  check(first <= last, "--ranks {}: the range is empty", text);
  std::vector<int> all;
  for (int64_t ranks = first; ranks <= last; ranks *= 2) {
    all.push_back(static_cast<int>(ranks));
  }
  return all;
}

/// Throws Failure if an output would replace an input.
void check_outputs(const PlanArguments& arguments, const io::Config& config) {
  std::vector<std::string> inputs = {arguments.train.config, arguments.machine,
                                     config.pruning.file};
  inputs.insert(inputs.end(), config.data.train.begin(), config.data.train.end());
  inputs.insert(inputs.end(), config.data.validation.begin(), config.data.validation.end());
  for (const std::string& output : {arguments.output, arguments.trace}) {
    if (!output.empty()) {
      check_output(output, inputs);
    }
  }
  check(arguments.output.empty() || arguments.trace.empty() ||
            fs::weakly_canonical(fs::absolute(arguments.output)) !=
                fs::weakly_canonical(fs::absolute(arguments.trace)),
        "-o and --trace name the same file {}: give each a name of its own", arguments.output);
}

/// `trial`: null without --try.
int predict(const PlanArguments& arguments, const Trial& trial = nullptr) {
  check(!arguments.train.config.empty(),
        "plan needs a config file, a run directory, or --calibrate");
  check(!arguments.machine.empty(),
        "plan needs --machine FILE: measure this machine with --calibrate -o FILE, or take one of "
        "machines/");
  std::error_code error;
  std::optional<planner::MeasuredRun> measured;
  if (fs::is_directory(arguments.train.config, error)) {
    check(arguments.ranks.empty() && !arguments.search,
          "{} is a run directory, which has its number of ranks and layout: leave --ranks and "
          "--search out, or plan its config.toml",
          arguments.train.config);
    measured = planner::read_measured_run(arguments.train.config, arguments.train.overrides);
  }
  const planner::Machine machine = planner::read_machine(arguments.machine);
  const io::Config config = measured ? measured->config : config_of(arguments.train);
  if (!measured) {
    note_default_network(arguments.train, config);
  }
  check_outputs(arguments, config);
  const AssumedProblem problem = assume_problem(config, nullptr);
  const model::Layers layers = model::make_layers(config.model, problem.shape);
  const train::InitialMasks start = train::initial_masks(config, model::parameters_of(layers));
  const planner::PlannedRun run{config, problem.shape, layers, start, arguments.tensor};
  const std::vector<int> ranks = measured
                                     ? std::vector{measured->ranks}
                                     : ranks_of(arguments.ranks.empty() ? "1" : arguments.ranks);
  PlanOutput found(run, machine, problem.note);
  std::optional<planner::SearchOptions> search;
  if (arguments.search) {
    search = {.codecs = arguments.codecs};
  }
  found.plan(ranks, search);
  if (trial) {
    found.add_measured(trial(found.configs_of_best(static_cast<size_t>(arguments.tries))));
  }
  if (measured) {
    found.compare_with(*measured);
  }
  if (!arguments.output.empty()) {
    found.add_scaling(ranks, search);
  }
  check(arguments.trace.empty() || found.best_fits(),
        "--trace needs a layout that fits the devices of {:.3g} GB, and none of the planned ones "
        "does: use --search, more stages (parallel.pipeline) or train.recompute",
        machine.memory * 1e-9);
  const bool needs_json = arguments.json || !arguments.output.empty();
  const nlohmann::ordered_json json = needs_json ? found.json() : nlohmann::ordered_json();
  if (!arguments.output.empty()) {
    io::write_text_atomically(arguments.output, report::render_plan(json, found.step_of_best()));
  }
  if (!arguments.trace.empty()) {
    planner::write_step_trace(arguments.trace, found.best());
  }
  for (const std::string& output : {arguments.output, arguments.trace}) {
    if (!output.empty()) {
      print_note("wrote " + output);
    }
  }
  if (arguments.json) {
    print_json(json);
  } else {
    print(found.text());
  }
  check(measured || found.best_fits(),
        "no planned layout fits the devices; the notes of the plan say what a rank needs and what "
        "would help");
  return 0;
}

/// --try: rank 0 predicts and prints, and all ranks train.
int predict_and_try(PlanArguments arguments) {
  check(arguments.search && arguments.tensor.ways == 1,
        "--try measures the best layouts of --search, without --tensor");
  return on_ranks(io::Config(), [&](parallel::Communicator& comm, const auto& /*on_failure*/) {
    const std::string ranks = fmt::format("{}", comm.size());
    check(arguments.ranks.empty() || arguments.ranks == ranks,
          "--ranks {} with --try needs a launch of as many ranks, and this one has {}: start them "
          "with mpirun, or leave --ranks out",
          arguments.ranks, ranks);
    arguments.ranks = ranks;
    WorkProgress status;
    planner::TrialOptions options{.on_progress = [&](const std::string& text) {
      if (comm.rank() == 0) {
        status.show(text);
      }
    }};
    if (arguments.quick) {
      options.rounds = 1;
      options.seconds = 0;
    }
    std::optional<parallel::Busy> searching;
    const auto trial = [&](std::vector<io::Config> layouts) {
      searching.reset();
      std::array<int64_t, 1> count{std::ssize(layouts)};
      parallel::broadcast(comm, 0, std::as_writable_bytes(std::span(count)));
      layouts.resize(static_cast<size_t>(count[0]));
      for (io::Config& layout : layouts) {
        const std::string text = train::broadcast_text(comm, config::to_toml(layout));
        layout = config::parse(text, "a layout of the search");
      }
      std::vector<planner::Tried> found = planner::try_layouts(comm, layouts, options);
      return found;
    };
    if (comm.rank() == 0) {
      searching.emplace(comm);
      predict(arguments, trial);
    } else {
      trial({});
    }
    return kDone;
  });
}

int measure(const PlanArguments& arguments) {
  check(arguments.train.config.empty() && arguments.machine.empty() && !arguments.search,
        "--calibrate measures this machine: leave the config, --machine and --search out");
  check(arguments.trace.empty(), "--calibrate predicts no step: leave --trace out");
  check(!arguments.output.empty(), "--calibrate needs -o FILE, where the machine is written");
  check_output(arguments.output, {});
  return on_ranks(io::Config(), [&](parallel::Communicator& comm, const auto& /*on_failure*/) {
    WorkProgress status;
    const planner::Machine machine =
        planner::calibrate(comm, {.threads = arguments.threads,
                                  .quick = arguments.quick,
                                  .rounds = arguments.rounds,
                                  .directory = fs::absolute(arguments.output).parent_path(),
                                  .on_progress = [&](const std::string& text) {
                                    if (comm.rank() == 0) {
                                      status.show(text);
                                    }
                                  }});
    if (comm.rank() == 0) {
      io::write_text_atomically(arguments.output, planner::text_of(machine));
      print(fmt::format("{}: {} rank{} of {} thread{}\n", arguments.output, comm.size(),
                        comm.size() == 1 ? "" : "s", arguments.threads,
                        arguments.threads == 1 ? "" : "s"));
    }
    return kDone;
  });
}

}  // namespace

void register_plan(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand(
      "plan", "predict the time and memory of a step on a machine, and find the fastest layout");
  const auto arguments = std::make_shared<PlanArguments>();
  command->add_option("config", arguments->train.config,
                      "config file, as for train; or a run directory: predicts that run, "
                      "beside its measurements");
  command->add_option("--set", arguments->train.overrides, "override: section.key=value")
      ->allow_extra_args(false);
  command->add_option("--machine", arguments->machine, "machine file (docs/planner.md)");
  command->add_option("--ranks", arguments->ranks,
                      "number of ranks, or a range: 64..2048 (1; of a run directory: its own)");
  CLI::Option* search = command->add_flag(
      "--search", arguments->search,
      "try all stages, schedules, micro-batches, storages, …; print the ten fastest");
  command
      ->add_flag("--codecs", arguments->codecs,
                 "with --search: also gradients of 8 and 4 bits, which change results")
      ->needs(search);
  option(*command, "--try", arguments->tries,
         "with --search, on the machine itself (under mpirun: with its ranks): train the "
         "N best layouts for seconds each, and order them by measured time",
         CLI::Range(1, 10))
      ->needs(search);
  CLI::Option* tensor =
      option(*command, "--tensor", arguments->tensor.ways,
             "devices that divide each layer, as in Megatron-LM: only to compare with "
             "published runs",
             CLI::Range(1, 64))
          ->capture_default_str();
  command
      ->add_flag("--sequence-parallel", arguments->tensor.sequence,
                 "with --tensor: norms are divided, too")
      ->needs(tensor);
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->add_flag("--calibrate", arguments->calibrate,
                    "measure this machine (under mpirun: with all its ranks) and write -o FILE");
  command->add_flag("--quick", arguments->quick,
                    "with --calibrate and --try: few and small measurements");
  option(*command, "--threads", arguments->threads, "with --calibrate: threads of a rank",
         CLI::Range(1, 1024))
      ->capture_default_str();
  option(*command, "--rounds", arguments->rounds,
         "with --calibrate: at least so many rounds of trainings; each operation keeps "
         "the median of its times. Use 4 on a shared machine",
         CLI::Range(1, 100))
      ->capture_default_str();
  command->add_option("-o,--output", arguments->output,
                      "write a page (plan.html); with --calibrate: the machine file");
  command->add_option("--trace", arguments->trace,
                      "write the best layout's step as Chrome trace events (plan.json)");
  arguments->command = command;
  command->callback([arguments, &chosen] {
    chosen = [arguments] {
      constexpr std::string_view kMeasures = "with --calibrate";
      constexpr std::string_view kPlans = "without --calibrate";
      const bool measures = arguments->calibrate;
      check_used(*arguments->command,
                 {{"--threads", measures, kMeasures},
                  {"--rounds", measures, kMeasures},
                  {"--quick", measures || arguments->tries > 0, "with --calibrate or --try"},
                  {"--ranks", !measures, kPlans},
                  {"--set", !measures, kPlans},
                  {"--tensor", !measures, kPlans},
                  {"--json", !measures, kPlans}});
      return arguments->calibrate   ? measure(*arguments)
             : arguments->tries > 0 ? predict_and_try(*arguments)
                                    : predict(*arguments);
    };
  });
}

}  // namespace espalier::cli
