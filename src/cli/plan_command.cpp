// espalier plan: predicts a training step on a machine, and searches for the fastest layout; with
// --calibrate, measures this machine.
#include <algorithm>
#include <charconv>

#include "io/run/metrics.h"
#include "src/cli/commands.h"
#include "src/cli/console.h"
#include "src/cli/listing.h"
#include "src/cli/train_arguments.h"
#include "src/planner/calibration.h"
#include "src/planner/search.h"

namespace espalier::cli {
namespace {

using Json = nlohmann::ordered_json;

struct PlanArguments {
  TrainArguments train;
  std::string machine, output;
  std::string ranks = "1";
  planner::TensorSplit tensor;
  bool search = false, json = false, calibrate = false, quick = false;
  int threads = 1;
};

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

std::string milliseconds_text(double seconds) { return fmt::format("{:.2f}", seconds * 1e3); }

/// `fits`: the device has memory for it.
Json json_of(const planner::StepPrediction& found, bool fits) {
  const parallel::Grid& grid = found.plan.layout.grid;
  Json json{{"ranks", found.ranks},
            {"stages", grid.pipeline},
            {"replicas", grid.data},
            {"schedule", grid.pipeline > 1 ? found.plan.layout.schedule.name : "none"},
            {"layers", found.plan.layout.partition()},
            {"micro_batch", found.micro_batch},
            {"micro_batches", found.micro_batches},
            {"step_ms", found.step * 1e3},
            {"compute_ms", found.compute * 1e3},
            {"waiting_ms", found.waiting * 1e3},
            {"reduction_ms", found.reduction * 1e3},
            {"update_ms", found.update * 1e3},
            {"samples_per_s", found.samples_per_s},
            {"flops", found.flops},
            {"bytes_reduced", found.bytes_reduced},
            {"memory", found.plan.fit.plan.needed()},
            {"fits", fits},
            {"operations_ms", Json::object()}};
  for (const auto& [name, seconds] : found.by_operation) {
    json["operations_ms"][name] = seconds * 1e3;
  }
  return json;
}

const Rows kHead{{"ranks", "stages", "schedule", "micro-batch", "step, ms", "compute", "waiting",
                  "reduction", "update", "samples/s", "memory"}};

std::vector<std::string> row_of(const planner::StepPrediction& found) {
  const parallel::Grid& grid = found.plan.layout.grid;
  return {fmt::format("{}", found.ranks),
          fmt::format("{}", grid.pipeline),
          grid.pipeline > 1 ? found.plan.layout.schedule.name : "none",
          fmt::format("{} x {}", found.micro_batches, found.micro_batch),
          milliseconds_text(found.step),
          milliseconds_text(found.compute),
          milliseconds_text(found.waiting),
          milliseconds_text(found.reduction),
          milliseconds_text(found.update),
          fmt::format("{:.1f}", found.samples_per_s),
          bytes_text(static_cast<double>(found.plan.fit.plan.needed()))};
}

/// The operations that take most of the computing time.
std::string operations_text(const planner::StepPrediction& found) {
  std::vector<std::pair<double, std::string>> all;
  double sum = 0;
  for (const auto& [name, seconds] : found.by_operation) {
    all.emplace_back(seconds, name);
    sum += seconds;
  }
  std::ranges::sort(all, std::greater{});
  constexpr size_t kMost = 8;
  Rows rows{{"operation", "ms", "share"}};
  for (const auto& [seconds, name] : std::span(all).first(std::min(kMost, all.size()))) {
    rows.push_back({name, milliseconds_text(seconds), percent(seconds / sum)});
  }
  return table(rows);
}

int predict(const PlanArguments& arguments) {
  check(!arguments.train.config.empty(), "plan needs a config file, or --calibrate");
  check(!arguments.machine.empty(),
        "plan needs --machine FILE: measure this machine with --calibrate -o FILE, or take one of "
        "machines/");
  const planner::Machine machine = planner::read_machine(arguments.machine);
  const io::Config config = config_of(arguments.train);
  const train::ProblemShape problem = assume_problem(config, nullptr).shape;
  const model::Layers layers = model::make_layers(config.model, problem);
  const train::InitialMasks start = train::initial_masks(config, model::parameters_of(layers));
  const planner::PlannedRun run{config, problem, layers, start, arguments.tensor};
  const double memory = machine.memory * arguments.tensor.ways;
  Json json{{"machine", machine.name}, {"plans", Json::array()}};
  Rows rows = kHead;
  std::string details;
  for (const int ranks : ranks_of(arguments.ranks)) {
    std::vector<planner::StepPrediction> plans;
    if (arguments.search) {
      planner::SearchResult found = planner::search_layouts(run, machine, ranks);
      for (planner::Candidate& candidate : found.best) {
        plans.push_back(std::move(candidate.prediction));
      }
      for (const auto& [reason, count] : found.refused) {
        details += fmt::format("{} of {} layouts over {} ranks left out: {}\n", count, found.tried,
                               ranks, reason);
      }
    } else {
      plans.push_back(planner::predict_step(run, machine, ranks));
    }
    for (const planner::StepPrediction& plan : plans) {
      const auto needed = static_cast<double>(plan.plan.fit.plan.needed());
      json["plans"].push_back(json_of(plan, needed <= memory));
      rows.push_back(row_of(plan));
      if (needed > memory) {
        details += fmt::format(
            "over {} ranks a rank needs {}, and a device has {}: use more stages "
            "(parallel.pipeline), train.recompute, pruning before the first step, or --search\n",
            ranks, bytes_text(needed), bytes_text(memory));
      }
    }
    if (rows.size() == 2) {
      details += operations_text(plans.front());
    }
  }
  if (arguments.json) {
    print_json(json);
  } else {
    print(fmt::format("on {}, predicted\n{}{}", machine.name, table(rows), details));
  }
  return 0;
}

int measure(const PlanArguments& arguments) {
  check(!arguments.output.empty(), "--calibrate needs -o FILE, where the machine is written");
  return on_ranks(io::Config(), [&](parallel::Communicator& comm, const auto& /*on_failure*/) {
    const planner::Machine machine =
        planner::calibrate(comm, {.threads = arguments.threads,
                                  .quick = arguments.quick,
                                  .on_progress = [&](const std::string& text) {
                                    if (comm.rank() == 0 && on_terminal()) {
                                      std::fprintf(stderr, "\r\033[K%s", text.c_str());
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
  command->add_option("config", arguments->train.config, "config file, as for train");
  command->add_option("--set", arguments->train.overrides, "override: section.key=value")
      ->allow_extra_args(false);
  command->add_option("--machine", arguments->machine, "machine file (docs/planner.md)");
  command->add_option("--ranks", arguments->ranks, "number of ranks, or a range: 64..2048")
      ->capture_default_str();
  command->add_flag("--search", arguments->search,
                    "try all stages, schedules and micro-batches; print the ten fastest");
  CLI::Option* tensor =
      command
          ->add_option("--tensor", arguments->tensor.ways,
                       "devices that divide each layer, as in Megatron-LM: only to compare with "
                       "published runs")
          ->check(CLI::Range(1, 64))
          ->capture_default_str();
  command
      ->add_flag("--sequence-parallel", arguments->tensor.sequence,
                 "with --tensor: norms are divided, too")
      ->needs(tensor);
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->add_flag("--calibrate", arguments->calibrate,
                    "measure this machine (under mpirun: with all its ranks) and write -o FILE");
  command->add_flag("--quick", arguments->quick, "with --calibrate: few and small measurements");
  command->add_option("--threads", arguments->threads, "with --calibrate: threads of a rank")
      ->capture_default_str();
  command->add_option("-o,--output", arguments->output, "with --calibrate: the machine file");
  command->callback([arguments, &chosen] {
    chosen = [arguments] {
      return arguments->calibrate ? measure(*arguments) : predict(*arguments);
    };
  });
}

}  // namespace espalier::cli
