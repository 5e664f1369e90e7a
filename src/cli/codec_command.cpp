// espalier codec: measures codecs on given values, for example on a real gradient: bits on the
// wire, errors, speed.
#include <cmath>

#include "parallel/wire/codec.h"
#include "parallel/wire/codec_report.h"
#include "src/cli/commands.h"
#include "src/cli/shared/console.h"
#include "src/cli/shared/options.h"
#include "src/cli/shared/paths.h"
#include "src/core/error.h"
#include "src/train/codec_choice/codec_values.h"

namespace espalier::cli {
namespace {

using Json = nlohmann::ordered_json;
using kernels::WireFormat;
using parallel::CodecErrors;

struct CodecArguments {
  std::string file, checkpoint, synthetic;  ///< exactly one is set
  std::string dtype = "fp32";
  train::CheckpointChoice choice;
  int64_t count = 1'000'000;
  uint64_t seed = 1;
  std::vector<std::string> codecs;  ///< empty: all
  double seconds = 0.2;
  bool by_parameter = false;
  bool json = false;
};

struct Row {
  std::string codec;
  parallel::CodecReport report;
};

/// Value codecs with their default bits; those with stochastic rounding with each number of bits.
std::vector<std::string> all_codecs() {
  std::vector<std::string> all;
  for (const kernels::WireCodec* codec : kernels::wire_codecs()) {
    const bool each = codec->numbers == kernels::WireNumbers::bits && codec->random;
    for (int bits = 1; each && bits <= codec->most_bits; ++bits) {
      all.push_back(fmt::format("{}:{}", codec->name, bits));
    }
    if (!each) {
      all.emplace_back(codec->name);
    }
  }
  return all;
}

train::CodecValues read_values(Arena& arena, const CodecArguments& arguments) {
  if (!arguments.file.empty()) {
    return train::raw_values(arena, arguments.file, dtype_by_name(arguments.dtype));
  }
  if (!arguments.checkpoint.empty()) {
    return train::checkpoint_values(arena, arguments.checkpoint, arguments.choice);
  }
  return train::synthetic_values(arena, arguments.synthetic, arguments.count, arguments.seed);
}

double root_mean_square(const CodecErrors& same) {
  return std::sqrt(same.squares / static_cast<double>(same.compared()));
}

double mb(double bytes) { return bytes / 1e6; }

/// All printed results.
struct Found {
  std::string source;
  train::CodecValues values;
  std::string kernels;
  CodecErrors same;  ///< statistics of the values themselves
  double copy = 0;   ///< bytes per second
  std::vector<Row> rows;
};

Found measure(const CodecArguments& arguments, const std::vector<WireFormat>& formats,
              Stream& stream) {
  const kernels::Kernels& kernels = kernels::by_name("cpu");
  check(kernels.name != "dry", "backend \"dry\" encodes nothing: unset ESPALIER_KERNELS");
  const std::string& path = arguments.file.empty() ? arguments.checkpoint : arguments.file;
  Found found{.source = path.empty() ? "synthetic" : path,
              .values = read_values(stream.arena(), arguments),
              .kernels = std::string(kernels.name),
              .same = {},
              .rows = {}};
  const Tensor& all = found.values.values.tensor();
  found.same = parallel::compare(all.span<float>(), all.span<float>());
  std::vector<Range> ranges;
  for (const auto& part : found.values.parts) {
    ranges.push_back(part.range);
  }
  parallel::CodecMeter meter(kernels, stream, all, std::move(ranges));
  for (const WireFormat& format : formats) {
    found.rows.push_back({parallel::text_of(format), meter.measure(format, arguments.seconds)});
  }
  found.copy = meter.copy_speed(arguments.seconds);
  return found;
}

Json to_json(const CodecErrors& errors) {
  return {{"values", errors.values},
          {"bytes", errors.bytes},
          {"bits_per_value", errors.bits()},
          {"relative_l2", errors.relative_l2()},
          {"mean_relative", errors.mean_relative()},
          {"relative_largest", errors.relative_largest()},
          {"cosine", errors.cosine()},
          {"bias", errors.bias()},
          {"lost", errors.lost}};
}

Json to_json(const Found& found, bool by_parameter) {
  Json json{{"source", found.source},
            {"kind", found.values.kind},
            {"messages", found.values.parts.size()},
            {"values", found.same.values},
            {"not_finite", found.same.values - found.same.finite},
            {"zeros", found.same.finite - found.same.nonzero},
            {"largest", found.same.largest},
            {"root_mean_square", root_mean_square(found.same)},
            {"backend", found.kernels},
            {"threads", 1},
            {"memcpy_mb_s", mb(found.copy)},
            {"codecs", Json::array()}};
  for (const auto& [codec, report] : found.rows) {
    Json row{{"codec", codec}};
    row.update(to_json(report.all));
    row["encode_mb_s"] = mb(report.speed.encode);
    row["decode_mb_s"] = mb(report.speed.decode);
    for (size_t p = 0; p < report.parts.size() && by_parameter; ++p) {
      Json part{{"name", found.values.parts[p].name}};
      part.update(to_json(report.parts[p]));
      row["parameters"].push_back(std::move(part));
    }
    json["codecs"].push_back(std::move(row));
  }
  return json;
}

std::string number(double value) { return std::isnan(value) ? "-" : fmt::format("{:.3g}", value); }

std::string speed(double bytes) { return grouped(std::llround(mb(bytes))); }

std::string codec_table(const Found& found, bool lost) {
  Rows lines{{"codec", "bits a value", "relative L2", "mean relative", "largest", "cosine", "bias",
              "encode, MB/s", "decode, MB/s"}};
  for (const auto& [codec, report] : found.rows) {
    const CodecErrors& all = report.all;
    const double cosine = all.cosine();
    lines.push_back({codec, fmt::format("{:.4f}", all.bits()), number(all.relative_l2()),
                     number(all.mean_relative()), number(all.relative_largest()),
                     std::isnan(cosine) ? "-" : fmt::format("{:.6f}", cosine), number(all.bias()),
                     speed(report.speed.encode), speed(report.speed.decode)});
  }
  lines.push_back({"memcpy", "32.0000", "", "", "", "", "", speed(found.copy), speed(found.copy)});
  for (size_t r = 0; r < lines.size() && lost; ++r) {
    lines[r].push_back(r == 0                   ? "lost"
                       : r <= found.rows.size() ? grouped(found.rows[r - 1].report.all.lost)
                                                : "");
  }
  return table(lines);
}

std::string parameter_table(const Found& found) {
  const auto values = found.values.values.tensor().span<float>();
  Rows lines{{"relative L2", "values", "root mean square"}};
  for (const auto& [codec, report] : found.rows) {
    lines.front().push_back(codec);
  }
  for (size_t p = 0; p < found.values.parts.size(); ++p) {
    const auto& [name, range] = found.values.parts[p];
    const auto part =
        values.subspan(static_cast<size_t>(range.first), static_cast<size_t>(range.count));
    lines.push_back(
        {name, grouped(range.count), number(root_mean_square(parallel::compare(part, part)))});
    for (const auto& [codec, report] : found.rows) {
      const CodecErrors& errors = report.parts[p];
      lines.back().push_back(
          number(errors.relative_l2()) +
          (errors.lost > 0 ? fmt::format(" ({} lost)", grouped(errors.lost)) : ""));
    }
  }
  return table(lines);
}

std::string text_of(const Found& found, bool by_parameter) {
  const CodecErrors& same = found.same;
  const int64_t not_finite = same.values - same.finite;
  std::string text = fmt::format(
      "{}: {} values ({}) in {} message{}; largest magnitude {}, root mean square {}, zeros {}\n",
      found.source, grouped(same.values), found.values.kind,
      grouped(std::ssize(found.values.parts)), found.values.parts.size() == 1 ? "" : "s",
      number(same.largest), number(root_mean_square(same)),
      percent(static_cast<double>(same.finite - same.nonzero) / static_cast<double>(same.values)));
  if (not_finite > 0) {
    text += fmt::format("{} values are NaN or infinite: errors are those of the others\n",
                        grouped(not_finite));
  }
  text += fmt::format("{}, one thread; speeds in MB of fp32 a second\n\n", found.kernels);
  const bool lost =
      std::ranges::any_of(found.rows, [](const Row& row) { return row.report.all.lost > 0; });
  text += codec_table(found, lost);
  if (lost) {
    text += "lost: finite values that come back as NaN or infinite; errors leave them out\n";
  }
  return by_parameter ? text + "\n" + parameter_table(found) : text;
}

int run_codec(const CodecArguments& arguments) {
  if (arguments.file.empty() && arguments.checkpoint.empty() && arguments.synthetic.empty()) {
    throw Usage("there is nothing to encode; add --file, --checkpoint or --synthetic");
  }
  if (arguments.by_parameter && arguments.codecs.empty()) {
    throw Usage("--by-parameter prints a column for each codec, and none is named; add --codec");
  }
  std::vector<WireFormat> formats;
  as_usage([&] {
    for (const std::string& text : arguments.codecs.empty() ? all_codecs() : arguments.codecs) {
      formats.push_back(parallel::format_of(parallel::parse_codec(text)));
    }
  });
  Arena arena;
  Stream stream(arena, 1);
  const Found found = measure(arguments, formats, stream);
  if (arguments.json) {
    print_json(to_json(found, arguments.by_parameter));
  } else {
    print(text_of(found, arguments.by_parameter));
  }
  return 0;
}

void add_sources(CLI::App& command, CodecArguments& arguments) {
  auto* file = command.add_option("--file", arguments.file, "little-endian numbers, nothing else");
  auto* checkpoint = command
                         .add_option("--checkpoint", arguments.checkpoint,
                                     "each parameter's kept elements, a message each")
                         ->transform(checkpoint_path);
  auto* synthetic = option(command, "--synthetic", arguments.synthetic,
                           "drawn numbers: normal, heavy (normal times e^(1.5 normal)), "
                           "uniform in [0, 1)",
                           CLI::IsMember({"normal", "heavy", "uniform"}));
  file->excludes(checkpoint)->excludes(synthetic);
  checkpoint->excludes(synthetic);
  option(command, "--dtype", arguments.dtype, "of --file: fp32, bf16 or fp16 (fp32)",
         CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->needs(file);
  command.add_option("--parameter", arguments.choice.pattern, "pattern of names (*)")
      ->needs(checkpoint);
  option(command, "--what", arguments.choice.what,
         "moment1, the running mean of gradients, or values (moment1 where there is one)",
         CLI::IsMember({"moment1", "values"}))
      ->needs(checkpoint);
  command
      .add_flag("--by-parameter", arguments.by_parameter,
                "also a line for each parameter, with its relative L2 error by each --codec")
      ->needs(checkpoint);
  option(command, "--count", arguments.count, "numbers to draw (1000000)",
         CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->needs(synthetic);
  command.add_option("--seed", arguments.seed, "of the numbers drawn (1)")->needs(synthetic);
}

}  // namespace

void register_codec(CLI::App& app, Action& chosen) {
  auto arguments = std::make_shared<CodecArguments>();
  CLI::App* command = app.add_subcommand(
      "codec", "Effect of codecs on given values: bits on the wire, errors, speed");
  command->footer(
      "Example: espalier codec --checkpoint RUN/checkpoints/step-000100.h5 --by-parameter \\\n"
      "  --codec maxmin:4 --codec dynamic8");
  add_sources(*command, *arguments);
  command->add_option("--codec", arguments->codecs,
                      "NAME[:NUMBER[:BUCKET]], as parallel.codec (all, with their defaults)");
  option(*command, "--seconds", arguments->seconds,
         "how long each codec is repeated for its speed (0.2)", between(0, 3600));
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->callback(
      [arguments, &chosen] { chosen = [arguments] { return run_codec(*arguments); }; });
}

}  // namespace espalier::cli
