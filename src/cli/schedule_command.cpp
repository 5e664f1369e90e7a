// espalier schedule NAME: draws a pipeline schedule and its counts, without a network or ranks.
#include <fstream>

#include "parallel/pipeline/schedule/check.h"
#include "parallel/pipeline/schedule/draw.h"
#include "parallel/pipeline/schedule/message_driven.h"
#include "parallel/pipeline/schedule/registry.h"
#include "src/cli/commands.h"
#include "src/cli/shared/console.h"
#include "src/cli/shared/options.h"
#include "src/cli/shared/paths.h"
#include "src/core/error.h"

namespace espalier::cli {
namespace {

using namespace parallel;

struct ScheduleArguments {
  std::string name;
  ScheduleShape shape{.ranks = 4, .micro_batches = 8, .chunks = 2};
  StageTimes times;  ///< of 1 / p of the network
  double latency = 0;
  double transfer = 0;
  int in_flight = 0;  ///< 0: the best
  std::string svg;
  bool json = false;
  int columns = 120;
};

struct Drawn {
  Schedule schedule;
  Timeline timeline;
  ScheduleFacts facts;
  int buffers = 0;
};

Drawn build(ScheduleArguments& arguments) {
  const ScheduleEntry& entry = schedule_entry(arguments.name);
  const int chunks = entry.chunks_of(arguments.shape);
  const auto& [forward, input, weight] = arguments.times;
  Costs costs = Costs::even(arguments.shape.ranks * chunks,
                            {forward / chunks, input / chunks, weight / chunks});
  costs.latency = arguments.latency;
  costs.transfer = arguments.transfer;
  Drawn drawn;
  if (entry.by_arrival()) {
    const int ranks = arguments.shape.ranks;
    const int micro_batches = arguments.shape.micro_batches;
    if (arguments.in_flight == 0) {
      arguments.in_flight = best_in_flight(ranks, micro_batches, costs);
    }
    std::tie(drawn.schedule, drawn.timeline) = simulate(
        MessageDriven{
            .ranks = ranks, .micro_batches = micro_batches, .in_flight = arguments.in_flight},
        costs);
  } else {
    drawn.schedule = make_schedule(arguments.name, arguments.shape);
    drawn.timeline = simulate(drawn.schedule, costs);
  }
  drawn.buffers = needed_buffers(drawn.schedule);
  drawn.facts = check_schedule(drawn.schedule, drawn.buffers);
  return drawn;
}

/// Weight versions that a rank of an asynchronous schedule keeps with stashing: one per forward in
/// flight.
int versions(const Drawn& drawn, size_t rank) {
  return drawn.schedule.synchronous ? 1 : drawn.facts.activations[rank];
}

std::string facts_table(const Drawn& drawn) {
  Rows rows{{"rank", "stages", "busy", "idle", "idle share", "own bubble", "activations",
             "weight parts", "weight versions", "delay", "messages"}};
  const Schedule& schedule = drawn.schedule;
  for (size_t rank = 0; rank < drawn.timeline.ranks.size(); ++rank) {
    std::vector<int> stages;
    int delay = 0;
    for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
      stages.push_back(schedule.stage_of(static_cast<int>(rank), chunk));
      delay = std::max(delay, drawn.facts.delay[static_cast<size_t>(stages.back())]);
    }
    const Timeline& timeline = drawn.timeline;
    auto number = [](double value) { return fmt::format("{:.6g}", value); };
    rows.push_back({fmt::format("{}", rank), fmt::format("{}", fmt::join(stages, " ")),
                    number(timeline.busy(rank)), number(timeline.idle(rank)),
                    percent(timeline.idle(rank) / timeline.makespan()),
                    number(timeline.bubble(rank)), fmt::format("{}", drawn.facts.activations[rank]),
                    fmt::format("{}", drawn.facts.weight_parts[rank]),
                    fmt::format("{}", versions(drawn, rank)), fmt::format("{}", delay),
                    fmt::format("{}", drawn.facts.messages[rank])});
  }
  return table(rows);
}

nlohmann::ordered_json to_json(const ScheduleArguments& arguments, const Drawn& drawn) {
  const Schedule& schedule = drawn.schedule;
  nlohmann::ordered_json json{{"schedule", schedule.name},
                              {"ranks", schedule.ranks},
                              {"chunks", schedule.chunks},
                              {"micro_batches", schedule.micro_batches},
                              {"synchronous", schedule.synchronous},
                              {"makespan", drawn.timeline.makespan()},
                              {"idle_share", drawn.timeline.idle_share()},
                              {"buffers", drawn.buffers}};
  if (arguments.in_flight > 0) {
    json["in_flight"] = arguments.in_flight;
  }
  for (size_t rank = 0; rank < drawn.timeline.ranks.size(); ++rank) {
    nlohmann::ordered_json row{{"rank", rank},
                               {"busy", drawn.timeline.busy(rank)},
                               {"idle", drawn.timeline.idle(rank)},
                               {"bubble", drawn.timeline.bubble(rank)},
                               {"activations", drawn.facts.activations[rank]},
                               {"weight_parts", drawn.facts.weight_parts[rank]},
                               {"weight_versions", versions(drawn, rank)},
                               {"messages", drawn.facts.messages[rank]}};
    for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
      const int stage = schedule.stage_of(static_cast<int>(rank), chunk);
      row["stages"].push_back(stage);
      row["delay"].push_back(drawn.facts.delay[static_cast<size_t>(stage)]);
    }
    for (const TimedAction& timed : drawn.timeline.ranks[rank]) {
      row["actions"].push_back({{"kind", name_of(timed.action.kind)},
                                {"stage", timed.action.stage},
                                {"micro_batch", timed.action.micro_batch},
                                {"begin", timed.begin},
                                {"end", timed.end}});
    }
    json["per_rank"].push_back(std::move(row));
  }
  return json;
}

std::string list_of_schedules() {
  std::string lines;
  for (const ScheduleEntry* entry : schedules()) {
    lines += fmt::format("  {:<16}{}\n", entry->name, entry->help);
  }
  return lines;
}

int draw(ScheduleArguments arguments) {
  const Drawn drawn = build(arguments);
  if (!arguments.svg.empty()) {
    std::ofstream file(arguments.svg);
    file << draw_svg(drawn.timeline,
                     fmt::format("{}: {} ranks, {} micro-batches", drawn.schedule.name,
                                 drawn.schedule.ranks, drawn.schedule.micro_batches));
    file.close();
    check(file.good(), "{} cannot be written", arguments.svg);
  }
  if (arguments.json) {
    print_json(to_json(arguments, drawn));
    return 0;
  }
  print(draw_text(drawn.timeline, arguments.columns) + "\n" + facts_table(drawn) +
        fmt::format("\n{}: makespan {:.6g}, idle {}{}; a channel must hold {} message{}\n",
                    drawn.schedule.name, drawn.timeline.makespan(),
                    percent(drawn.timeline.idle_share()),
                    arguments.in_flight > 0
                        ? fmt::format(", at most {} micro-batches in flight", arguments.in_flight)
                        : "",
                    drawn.buffers, drawn.buffers == 1 ? "" : "s"));
  return 0;
}

}  // namespace

void register_schedule(CLI::App& app, Action& chosen) {
  auto arguments = std::make_shared<ScheduleArguments>();
  CLI::App* command = app.add_subcommand("schedule", "Draw and count a pipeline schedule");
  command->footer(fmt::format(
      "Names:\n{}"
      "F forward, B backward, I its input part, W its weight part, each with the micro-batch's "
      "number. Times are\n"
      "those of one micro-batch on 1 / stages of the network; schedules with several chunks a rank "
      "cut them.\n"
      "Activations: most micro-batches of a chunk held for backward; weight parts: most inputs "
      "held "
      "for W;\n"
      "weight versions: weights kept if an asynchronous stage stashes them; delay: updates between "
      "a forward\n"
      "and the update with its gradient; own bubble: idle between a rank's first and last action.",
      list_of_schedules()));
  command->add_option("name", arguments->name, "the schedule")->required();
  option(*command, "--stages", arguments->shape.ranks, "pipeline ranks (4)", CLI::Range(1, 1024));
  option(*command, "--micro-batches", arguments->shape.micro_batches, "of a step (8)",
         CLI::Range(1, 65536));
  option(*command, "--virtual-stages", arguments->shape.chunks, "chunks a rank, of interleaved (2)",
         CLI::Range(1, 64));
  option(*command, "--every", arguments->shape.micro_batches_per_update,
         "micro-batches of an update, of async (1)", CLI::Range(1, 65536));
  option(*command, "--forward", arguments->times.forward, "time (1)", CLI::PositiveNumber);
  option(*command, "--backward-input", arguments->times.backward_input, "time (1)",
         CLI::PositiveNumber);
  option(*command, "--backward-weight", arguments->times.backward_weight, "time (1)",
         CLI::PositiveNumber);
  option(*command, "--latency", arguments->latency, "of a message (0)", CLI::NonNegativeNumber);
  option(*command, "--transfer", arguments->transfer, "time a message occupies its link (0)",
         CLI::NonNegativeNumber);
  option(*command, "--in-flight", arguments->in_flight,
         "limit of message-driven (the smallest within 1 % of the best)", CLI::PositiveNumber);
  option(*command, "--columns", arguments->columns, "width of the picture (120)",
         CLI::Range(20, 10000));
  command->add_option("--svg", arguments->svg, "also draw to this file");
  command->add_flag("--json", arguments->json, "one JSON object instead of text");
  command->callback([arguments, command, &chosen] {
    chosen = [arguments, command] {
      const parallel::ScheduleEntry& entry = parallel::schedule_entry(arguments->name);
      check_used(*command, {{"--virtual-stages", entry.chunks == 0, "with schedule interleaved"},
                            {"--every", !entry.synchronous, "with schedule async"},
                            {"--in-flight", entry.by_arrival(), "with schedule message-driven"},
                            {"--columns", !arguments->json, "without --json"}});
      if (!arguments->svg.empty()) {
        check_output(arguments->svg, {});
      }
      return draw(*arguments);
    };
  });
}

}  // namespace espalier::cli
