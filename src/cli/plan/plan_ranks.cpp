// espalier plan-communication ranks: predicts Espalier's data-parallel step for given times, link
// and codecs.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "parallel/wire/codec.h"
#include "src/cli/plan/plan_parts.h"
#include "src/cli/shared/console.h"
#include "src/cli/shared/options.h"
#include "src/communication_cost/exchange_model.h"
#include "src/core/error.h"
#include "src/kernels/wire_codec.h"

namespace espalier::cli {
namespace {

using namespace cost;
using Json = nlohmann::ordered_json;

constexpr double kFloatBytes = 4;

struct RanksArguments {
  std::vector<int> ranks;
  double forward_ms = 0, backward_ms = 0, optimizer_ms = 0;
  double parameters = 0;  ///< a double accepts 124e6
  double density = 1;
  std::vector<std::string> codecs{"fp32"};
  double bits_per_value = 0;  ///< > 0: replaces codecs
  std::string reduction = "sra";
  double link_gbit = 0;
  double latency_us = 0;
  double encode_gb = 0, decode_gb = 0;  ///< per second, of fp32; 0: no time
  double bucket_mb = 4;                 ///< MiB of fp32
  bool no_overlap = false;
};

struct RanksRow {
  int ranks = 0;
  std::string codec;
  double bits = 0;  ///< per value, including bucket metadata
  ExchangePrediction found;
};

using BytesOf = std::function<double(int64_t values)>;

/// Name and message size of each requested codec.
std::vector<std::pair<std::string, BytesOf>> wires(const RanksArguments& arguments) {
  if (const double bits = arguments.bits_per_value; bits > 0) {
    return {{"-",
             [bits](int64_t values) { return std::ceil(bits * static_cast<double>(values) / 8); }}};
  }
  std::vector<std::pair<std::string, BytesOf>> found;
  for (const std::string& codec : arguments.codecs) {
    const kernels::WireFormat format = parallel::format_of(parallel::parse_codec(codec));
    found.emplace_back(codec, [format](int64_t values) {
      return static_cast<double>(kernels::wire_bytes(format, values));
    });
  }
  return found;
}

double rate(double gb) {
  return gb > 0 ? gb * 1e9 / kFloatBytes : std::numeric_limits<double>::infinity();
}

std::vector<RanksRow> rows_of(const RanksArguments& arguments) {
  const int64_t values = std::llround(arguments.parameters * arguments.density);
  const ComputeTimes compute{.forward_s = arguments.forward_ms / 1e3,
                             .backward_s = arguments.backward_ms / 1e3,
                             .optimizer_s = arguments.optimizer_ms / 1e3};
  const EvenBuckets gradient{.values = values,
                             .bucket_values = std::max<int64_t>(
                                 1, std::llround(arguments.bucket_mb * 0x1p20 / kFloatBytes)),
                             .backward_s = compute.backward_s,
                             .overlap = !arguments.no_overlap};
  std::vector<RanksRow> rows;
  for (const auto& [codec, wire] : wires(arguments)) {
    const std::vector<GradientBucket> buckets = cut(gradient, wire);
    const double bits = values == 0 ? 0 : 8 * wire(values) / static_cast<double>(values);
    const bool coded = codec != "fp32";  // fp32 is sent uncompressed
    for (const int ranks : arguments.ranks) {
      const ExchangeModel model{.ranks = ranks,
                                .reduction = arguments.reduction,
                                .link = {.latency_s = arguments.latency_us / 1e6,
                                         .bytes_per_s = gbit_bytes(arguments.link_gbit)},
                                .encode_per_s = rate(coded ? arguments.encode_gb : 0),
                                .decode_per_s = rate(coded ? arguments.decode_gb : 0)};
      rows.push_back({ranks, codec, bits, predict(compute, buckets, model)});
    }
  }
  return rows;
}

void plan_ranks(const RanksArguments& arguments, bool as_json) {
  const std::vector<RanksRow> rows = rows_of(arguments);
  if (as_json) {
    Json json{{"reduction", arguments.reduction},
              {"values", std::llround(arguments.parameters * arguments.density)},
              {"link_gbit", arguments.link_gbit},
              {"latency_us", arguments.latency_us},
              {"predictions", Json::array()}};
    for (const auto& [ranks, codec, bits, found] : rows) {
      json["predictions"].push_back({{"ranks", ranks},
                                     {"codec", codec},
                                     {"bits_per_value", bits},
                                     {"bytes", found.bytes},
                                     {"step_ms", found.step_s * 1e3},
                                     {"exposed_ms", found.exposed_s * 1e3},
                                     {"codec_ms", found.codec_s * 1e3},
                                     {"waiting_ms", found.waiting_s * 1e3},
                                     {"link_ms", found.link_s * 1e3},
                                     {"speedup", found.speedup},
                                     {"efficiency", found.speedup / ranks}});
    }
    print_json(json);
    return;
  }
  Rows lines{{"codec", "ranks", "bits a value", "sent, MB", "link, ms", "codec, ms", "waiting, ms",
              "step, ms", "speedup", "efficiency"}};
  for (const auto& [ranks, codec, bits, found] : rows) {
    auto ms = [](double seconds) { return fmt::format("{:.2f}", seconds * 1e3); };
    lines.push_back({codec, fmt::format("{}", ranks), fmt::format("{:.3f}", bits),
                     fmt::format("{:.3f}", found.bytes / 1e6), ms(found.link_s), ms(found.codec_s),
                     ms(found.waiting_s), ms(found.step_s), fmt::format("{:.3f}", found.speedup),
                     percent(found.speedup / ranks)});
  }
  print(table(lines));
}

void add_compute(CLI::App& command, RanksArguments& arguments) {
  command
      .add_option("--forward-ms", arguments.forward_ms, "of a step: all before the last backward")
      ->required()
      ->check(at_least_zero());
  command.add_option("--backward-ms", arguments.backward_ms, "under which gradients travel")
      ->required()
      ->check(at_least_zero());
  option(command, "--optimizer-ms", arguments.optimizer_ms, "all after the gradient's sum (0)",
         at_least_zero());
  command.add_option("--parameters", arguments.parameters, "of the network; 124e6 will do")
      ->required()
      ->check(between(1.0, 1e15));
  option(command, "--density", arguments.density, "share of parameters that are kept (1)",
         between(0.0, 1.0));
}

void add_exchange(CLI::App& command, RanksArguments& arguments) {
  auto* codec = command.add_option(
      "--codec", arguments.codecs,
      fmt::format("one or several of {} (fp32), with numbers as in parallel.codec: maxmin:4:512",
                  fmt::join(names(kernels::wire_codecs()), ", ")));
  option(command, "--bits-per-value", arguments.bits_per_value,
         "instead of --codec: all bits that travel for a value", between(1e-6, 64.0))
      ->excludes(codec);
  option(command, "--reduction", arguments.reduction, "sra, ring or all-to-all (sra)",
         CLI::IsMember({"sra", "ring", "all-to-all"}));
  command.add_option("--link-gbit", arguments.link_gbit, "10^9 bits a second of a rank, each way")
      ->required()
      ->check(above_zero());
  option(command, "--latency-us", arguments.latency_us, "of a message (0)", at_least_zero());
  option(command, "--encode-gb", arguments.encode_gb, "GB of fp32 encoded a second (no time)",
         above_zero());
  option(command, "--decode-gb", arguments.decode_gb, "GB of fp32 decoded a second (no time)",
         above_zero());
  option(command, "--bucket-mb", arguments.bucket_mb, "MiB of fp32 reduced at once (4)",
         between(1e-5, 1e9));
  command.add_flag("--no-overlap", arguments.no_overlap, "nothing travels before backward's end");
}

}  // namespace

void register_plan_ranks(CLI::App& plan, Action& chosen, const JsonFlag& json) {
  auto arguments = std::make_shared<RanksArguments>();
  CLI::App* command = plan.add_subcommand(
      "ranks", "A data-parallel step: gradients in buckets, encoded, under backward");
  command->footer(
      "Example: espalier plan-communication ranks --ranks 2 4 --forward-ms 60 --backward-ms 120 "
      "\\\n"
      "  --parameters 10.8e6 --density 0.1 --codec fp32 dynamic8 maxmin --link-gbit 0.1 "
      "--latency-us 50");
  command->add_option("--ranks", arguments->ranks, "one or several counts")
      ->required()
      ->check(CLI::Range(1, 1 << 20));
  add_compute(*command, *arguments);
  add_exchange(*command, *arguments);
  add_json(*command, json);
  command->callback([arguments, json, &chosen] {
    chosen = [arguments, json] { return as_usage([&] { plan_ranks(*arguments, *json); }); };
  });
}

}  // namespace espalier::cli
