// espalier plan-communication: predicts the cost of communication in a step from times.
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <optional>

#include "src/cli/plan/plan_parts.h"
#include "src/cli/shared/console.h"
#include "src/cli/shared/options.h"
#include "src/communication_cost/communication_model.h"
#include "src/communication_cost/link.h"
#include "src/core/error.h"

namespace espalier::cli {
namespace {

using namespace cost;
using Json = nlohmann::ordered_json;

/// "1.1:0.3" → {1.1, 0.3}; `form` is text for the error.
std::vector<double> numbers(const std::string& text, std::string_view form) {
  std::vector<double> found;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data();; ++at) {
    double value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    check(
        error == std::errc() && std::isfinite(value) && value >= 0 && (next == end || *next == ':'),
        "\"{}\" is not of the form {}", text, form);
    found.push_back(value);
    if (next == end) {
      return found;
    }
    at = next;
  }
}

std::vector<Transfer> transfers(const std::vector<std::string>& texts) {
  constexpr std::string_view kForm = "SYNC:UNDER or SYNC:UNDER:COUNT (ms, ms, a whole number)";
  std::vector<Transfer> found;
  for (const std::string& text : texts) {
    std::vector<double> parts = numbers(text, kForm);
    if (parts.size() == 2) {
      parts.push_back(1);
    }
    check(parts.size() == 3 && parts[2] <= 1e9 && parts[2] == std::floor(parts[2]),
          "\"{}\" is not of the form {}", text, kForm);
    found.push_back(
        {.sync_ms = parts[0], .under_ms = parts[1], .count = static_cast<int>(parts[2])});
  }
  return found;
}

Json to_json(const Prediction& found) {
  return {{"step_ms", found.step_ms}, {"exposed_ms", found.exposed_ms}, {"speedup", found.speedup}};
}

struct NodeArguments {
  NodeTimes times;
  std::vector<std::string> conv, fc;  ///< SYNC:UNDER[:COUNT]
};

void plan_node(NodeArguments arguments, bool as_json) {
  arguments.times.conv = transfers(arguments.conv);
  arguments.times.fc = transfers(arguments.fc);
  const Prediction found = predict(arguments.times);
  if (as_json) {
    Json json{{"gpus", arguments.times.gpus}};
    json.update(to_json(found));
    print_json(json);
    return;
  }
  print(table({{"GPUs", "step, ms", "exposed, ms", "speedup"},
               {fmt::format("{}", arguments.times.gpus), fmt::format("{:.2f}", found.step_ms),
                fmt::format("{:.2f}", found.exposed_ms), fmt::format("{:.2f}", found.speedup)}}));
}

struct ClusterArguments {
  ClusterTimes times;
  std::optional<double> pass_ms;  ///< empty: fc_ms
  std::vector<double> sync_ms;    ///< one per row
};

void plan_cluster(const ClusterArguments& arguments, bool as_json) {
  ClusterTimes times = arguments.times;
  times.pass_ms = arguments.pass_ms.value_or(times.fc_ms);
  Json json{{"nodes", times.nodes},
            {"gpus", times.nodes * times.gpus_per_node},
            {"batch", times.batch},
            {"sub_batch", times.sub_batch},
            {"predictions", Json::array()}};
  Rows rows{{"sync, ms", "step, ms", "exposed, ms", "speedup"}};
  for (const double sync : arguments.sync_ms) {
    times.sync_ms = sync;
    const Prediction found = predict(times);
    Json row{{"sync_ms", sync}};
    row.update(to_json(found));
    json["predictions"].push_back(std::move(row));
    rows.push_back({fmt::format("{}", sync), fmt::format("{:.2f}", found.step_ms),
                    fmt::format("{:.2f}", found.exposed_ms), fmt::format("{:.2f}", found.speedup)});
  }
  if (as_json) {
    print_json(json);
  } else {
    print(table(rows));
  }
}

struct LinkArguments {
  std::vector<std::string> samples;  ///< BYTES:MS
};

void plan_link(const LinkArguments& arguments, bool as_json) {
  std::vector<LinkSample> samples;
  for (const std::string& text : arguments.samples) {
    const std::vector<double> parts = numbers(text, "BYTES:MS");
    check(parts.size() == 2, "\"{}\" is not of the form BYTES:MS; write for example 1e6:8.1", text);
    samples.push_back({.bytes = parts[0], .seconds = parts[1] / 1e3});
  }
  const LinkFit fit = fit_link(samples);
  const double gbit = fit.link.bytes_per_s / gbit_bytes(1);
  if (as_json) {
    print_json({{"latency_us", fit.link.latency_s * 1e6},
                {"gbit", gbit},
                {"worst_error", fit.worst},
                {"samples", samples.size()}});
    return;
  }
  print(fmt::format("--latency-us {:.6g} --link-gbit {:.6g}  (worst error {} of {} messages)\n",
                    fit.link.latency_s * 1e6, gbit, percent(fit.worst), samples.size()));
}

/// Options for the times of one GPU, the common input of both models of the paper.
void add_parts(CLI::App& command, double& total_ms, double& fc_ms) {
  command.add_option("--compute-ms", total_ms, "a batch on one GPU: forward, backward, update")
      ->required()
      ->check(above_zero());
  command.add_option("--fc-ms", fc_ms, "what of it the fully connected layers take")
      ->required()
      ->check(at_least_zero());
}

void register_node(CLI::App& plan, Action& chosen, const JsonFlag& json) {
  auto arguments = std::make_shared<NodeArguments>();
  CLI::App* command = plan.add_subcommand("node", "Dettmers' model of the GPUs of one machine");
  command->footer(
      "A transfer is SYNC:UNDER[:COUNT]: it takes SYNC ms, hides under UNDER ms of work (0: under\n"
      "nothing), and happens COUNT times. The paper's 8-bit case:\n"
      "  espalier plan-communication node --gpus 4 --compute-ms 104.1 --fc-ms 6.5 \\\n"
      "    --parallel-fc-ms 3.34 --conv-sync 0.05:0 --fc-sync 0.5:0.3 0.5:0.15 0.4:0:5");
  NodeTimes& times = arguments->times;
  add_parts(*command, times.total_ms, times.fc_ms);
  command
      ->add_option("--parallel-fc-ms", times.parallel_fc_ms,
                   "the fully connected layers, cut over the GPUs, for one sub-batch")
      ->required()
      ->check(at_least_zero());
  option(*command, "--gpus", times.gpus, "of the machine", CLI::Range(1, 1 << 20))
      ->capture_default_str();
  option(*command, "--sub-batches", times.sub_batches, "passes of the fully connected layers",
         CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--conv-sync", arguments->conv, "transfers of gradients of convolutions");
  command->add_option("--fc-sync", arguments->fc,
                      "transfers of activations and their gradients, of all sub-batches");
  add_json(*command, json);
  command->callback([arguments, json, &chosen] {
    chosen = [arguments, json] { return as_usage([&] { plan_node(*arguments, *json); }); };
  });
}

void register_cluster(CLI::App& plan, Action& chosen, const JsonFlag& json) {
  auto arguments = std::make_shared<ClusterArguments>();
  CLI::App* command =
      plan.add_subcommand("cluster", "Dettmers' model of the GPUs of many machines");
  command->footer(
      "The paper's 50.6: espalier plan-communication cluster --nodes 32 --gpus-per-node 3 \\\n"
      "  --batch 12288 --sub-batch 2048 --compute-ms 104.1 --fc-ms 6.5 --sync-ms 3.26 --under-ms "
      "1.3");
  ClusterTimes& times = arguments->times;
  add_parts(*command, times.total_ms, times.fc_ms);
  command
      ->add_option("--sync-ms", arguments->sync_ms,
                   "activations of a sub-batch to all machines; several make a row each")
      ->required()
      ->check(at_least_zero());
  option(*command, "--under-ms", times.under_ms, "the product that goes on meanwhile (0)",
         at_least_zero());
  option(*command, "--pass-ms", arguments->pass_ms,
         "the fully connected layers for one sub-batch (as --fc-ms)", at_least_zero());
  option(*command, "--nodes", times.nodes, "machines", CLI::Range(1, 1 << 20))
      ->capture_default_str();
  option(*command, "--gpus-per-node", times.gpus_per_node, "of a machine", CLI::Range(1, 1024))
      ->capture_default_str();
  option(*command, "--batch", times.batch, "samples of a step, all GPUs together", above_zero())
      ->capture_default_str();
  option(*command, "--sub-batch", times.sub_batch, "samples sent at once", above_zero())
      ->capture_default_str();
  add_json(*command, json);
  command->callback([arguments, json, &chosen] {
    chosen = [arguments, json] { return as_usage([&] { plan_cluster(*arguments, *json); }); };
  });
}

void register_link(CLI::App& plan, Action& chosen, const JsonFlag& json) {
  auto arguments = std::make_shared<LinkArguments>();
  CLI::App* command =
      plan.add_subcommand("link", "Latency and bandwidth of a link from measured messages");
  command->add_option("samples", arguments->samples, "BYTES:MS of each; two sizes or more")
      ->required();
  add_json(*command, json);
  command->callback([arguments, json, &chosen] {
    chosen = [arguments, json] { return as_usage([&] { plan_link(*arguments, *json); }); };
  });
}

}  // namespace

void add_json(CLI::App& command, const JsonFlag& json) {
  command.add_flag("--json", *json, "print one JSON object");
}

void register_plan_communication(CLI::App& app, Action& chosen) {
  const auto json = std::make_shared<bool>(false);
  CLI::App* plan = app.add_subcommand("plan-communication",
                                      "Predict what communication costs a step, from times");
  plan->footer("Without a subcommand: the tables of Dettmers' paper, published and computed.");
  plan->require_subcommand(0, 1);
  add_json(*plan, json);
  plan->callback([json, plan, &chosen] {
    if (plan->get_subcommands().empty()) {
      chosen = [json] {
        print_paper(*json);
        return 0;
      };
    }
  });
  register_plan_ranks(*plan, chosen, json);
  register_node(*plan, chosen, json);
  register_cluster(*plan, chosen, json);
  register_link(*plan, chosen, json);
}

}  // namespace espalier::cli
