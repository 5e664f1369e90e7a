// espalier data inspect: shows the samples of data files as a run reads them. data tokenize:
// tokenize_command.cpp.
#include <fmt/ranges.h>

#include "io/data/image_format.h"
#include "io/data/images.h"
#include "io/data/token_format.h"
#include "io/data/tokens.h"
#include "src/cli/commands.h"
#include "src/cli/shared/console.h"
#include "src/cli/shared/options.h"
#include "src/core/error.h"

namespace espalier::cli {
namespace {

struct DataArguments {
  io::DataConfig data{.validation_fraction = 0};
  int64_t context = 64;
  bool json = false;
  const CLI::App* command = nullptr;
};

/// Printable bytes as they are, others as \xNN.
std::string shown(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += byte >= 0x20 && byte < 0x7f ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
  }
  return text;
}

nlohmann::ordered_json split_of(const DataArguments& arguments, io::Split split) {
  const auto data = io::TokenDataset::open(arguments.data, split, {.context = arguments.context});
  return {{"tokens", data.size()}, {"windows", data.evaluation_windows(arguments.context)}};
}

/// Six digits: enough for fp32 pixels.
std::string list_of(const std::vector<double>& numbers) {
  return fmt::format("[{:.6f}]", fmt::join(numbers, ", "));
}

int inspect_images(const DataArguments& arguments) {
  const auto train = io::ImageDataset::open(arguments.data, io::Split::train);
  const io::ImageDataset::Statistics statistics = train.statistics();
  const Shape& image = train.extents();
  nlohmann::ordered_json json{{"kind", arguments.data.kind},
                              {"format", arguments.data.format},
                              {"image", image.extents()},
                              {"classes", train.classes()},
                              {"train", {{"images", train.size()}}},
                              {"validation", nlohmann::ordered_json()},
                              {"mean", statistics.mean},
                              {"deviation", statistics.deviation}};
  Rows rows{{"split", "images"}, {"train", grouped(train.size())}};
  if (!arguments.data.validation.empty() || arguments.data.validation_fraction > 0) {
    const int64_t size = io::ImageDataset::open(arguments.data, io::Split::validation).size();
    json["validation"] = {{"images", size}};
    rows.push_back({"validation", grouped(size)});
  }
  if (arguments.json) {
    print_json(json);
    return 0;
  }
  print(
      fmt::format("{}{} classes; of the training images, by channel:\n\n"
                  "[model]\nimage = {}\n\n[data]\nmean = {}\ndeviation = {}\n",
                  table(rows), train.classes(), image.text(), list_of(statistics.mean),
                  list_of(statistics.deviation)));
  return 0;
}

int inspect(const DataArguments& arguments) {
  const bool images = arguments.data.kind == "images";
  check_used(*arguments.command,
             {{"--format", images, "with --kind images"},
              {"--token-type", arguments.data.kind == "tokens", "with --kind tokens"},
              {"--context", !images, "with kinds of text and tokens"}});
  if (arguments.data.kind == "images") {
    return inspect_images(arguments);
  }
  const auto train =
      io::TokenDataset::open(arguments.data, io::Split::train, {.context = arguments.context});
  nlohmann::ordered_json json{{"kind", arguments.data.kind},
                              {"vocabulary", train.vocabulary()},
                              {"context", arguments.context},
                              {"train", split_of(arguments, io::Split::train)}};
  const bool has_validation =
      !arguments.data.validation.empty() || arguments.data.validation_fraction > 0;
  json["validation"] =
      has_validation ? split_of(arguments, io::Split::validation) : nlohmann::ordered_json();
  if (arguments.data.kind == "chars") {
    json["characters"] = shown(train.characters().bytes());
  }
  const int64_t noted =
      arguments.data.kind == "tokens" ? io::noted_vocabulary(arguments.data.train) : 0;
  if (noted > 0) {
    json["tokenizer_vocabulary"] = noted;
  }
  if (arguments.json) {
    print_json(json);
    return 0;
  }
  Rows rows{{"split", "tokens", "windows of context + 1"}};
  for (const char* split : {"train", "validation"}) {
    if (json[split].is_object()) {
      rows.push_back({split, grouped(json[split]["tokens"].get<int64_t>()),
                      grouped(json[split]["windows"].get<int64_t>())});
    }
  }
  const std::string about =
      json.contains("characters") ? ": " + json["characters"].get<std::string>()
      : noted > train.vocabulary()
          ? fmt::format(
                " (the largest token + 1); their tokenizer has {}: set model.vocabulary = {}",
                grouped(noted), noted)
          : "";
  print(fmt::format("{}vocabulary {}{}\n", table(rows), train.vocabulary(), about));
  return 0;
}

void register_inspect_data(CLI::App& data, Action& chosen) {
  auto arguments = std::make_shared<DataArguments>();
  arguments->data.validation_fraction = io::DataConfig().validation_fraction;
  CLI::App* command = data.add_subcommand(
      "inspect",
      "Tokens, vocabulary and split of data files, as a run would read them; of images their "
      "number, mean and deviation");
  command->add_option("files", arguments->data.train, "data.train")->required();
  command->add_option("--validation", arguments->data.validation, "data.validation")
      ->allow_extra_args(false);
  option(*command, "--validation-fraction", arguments->data.validation_fraction,
         "data.validation_fraction", CLI::Range(0.0, 0.999999))
      ->capture_default_str();
  option(*command, "--kind", arguments->data.kind, "data.kind",
         CLI::IsMember({"bytes", "chars", "tokens", "images"}))
      ->capture_default_str();
  option(*command, "--format", arguments->data.format, "data.format",
         CLI::IsMember(names(io::image_formats())))
      ->capture_default_str();
  option(*command, "--token-type", arguments->data.token_type, "data.token_type",
         CLI::IsMember({"auto", "uint16", "uint32"}))
      ->capture_default_str();
  option(*command, "--context", arguments->context, "model.context", CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "print one JSON object");
  arguments->command = command;
  command->callback([arguments, &chosen] { chosen = [arguments] { return inspect(*arguments); }; });
}

}  // namespace

void register_data(CLI::App& app, Action& chosen) {
  CLI::App* data = app.add_subcommand("data", "Write token files, inspect data files");
  data->require_subcommand(0, 1);
  data->callback([data, &chosen]() {
    if (data->get_subcommands().empty()) {
      chosen = []() -> int { throw Usage("data needs a subcommand: tokenize or inspect"); };
    }
  });
  register_tokenize(*data, chosen);
  register_inspect_data(*data, chosen);
}

}  // namespace espalier::cli
