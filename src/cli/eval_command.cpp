// espalier eval FILE.h5: the validation loss of a file of weights, and the accuracy of a classifier
// of images, over the same samples as in training. With --data TEXT: the perplexity of a text by
// sliding windows (src/train/generation/perplexity.h).
#include <fmt/ranges.h>

#include <cmath>
#include <optional>

#include "io/data/fingerprint.h"
#include "src/cli/commands.h"
#include "src/cli/shared/console.h"
#include "src/cli/shared/options.h"
#include "src/cli/shared/paths.h"
#include "src/cli/shared/text_codec.h"
#include "src/cli/shared/weights_file.h"
#include "src/core/trace.h"
#include "src/train/checkpoint/manifest.h"
#include "src/train/generation/perplexity.h"
#include "src/train/run/source.h"

namespace espalier::cli {
namespace {

struct EvalArguments {
  std::string file;
  ConfigSource config;
  std::string data;
  std::string tokenizer;
  int64_t stride = 0;  ///< 0: the context
  bool json = false;
  const CLI::App* command = nullptr;
};

struct Evaluation {
  double loss = 0;                       ///< nats per prediction
  std::optional<double> top1{}, top5{};  ///< as train::StepReport has them
  int64_t samples = 0;
  int64_t predictions = 0;
  double seconds = 0;
};

/// Evaluates the validation samples that `train` evaluates.
Evaluation evaluate(train::Stage& stage, const train::Source& source, const io::Config& config,
                    int64_t micro_batch) {
  const double begin = now_seconds();
  WorkProgress progress("eval, samples");
  Evaluation result;
  result.samples = train::evaluation_samples(source, config, config.train.eval_batches);
  train::Part::Loss sum;
  for (int64_t at = 0; at < result.samples; at += micro_batch) {
    const int64_t n = std::min(micro_batch, result.samples - at);
    source.validation(at, stage.inputs(n), stage.targets(n));
    sum += stage.evaluate(n);
    progress.show(at + n, result.samples);
  }
  result.predictions = result.samples * source.problem().rows;
  const auto predictions = static_cast<double>(result.predictions);
  result.loss = sum.sum / predictions;
  if (const train::ProblemShape problem = source.problem(); problem.classifies_images()) {
    result.top1 = static_cast<double>(sum.top1) / predictions;
    if (problem.classes > 5) {
      result.top5 = static_cast<double>(sum.top5) / predictions;
    }
  }
  result.seconds = now_seconds() - begin;
  return result;
}

/// The files whose samples are evaluated.
const std::vector<std::string>& files_of(const io::DataConfig& data) {
  return data.validation.empty() ? data.train : data.validation;
}

/// For the user: these files are not those of training. Empty: they are, or it is unknown.
std::string data_note(const WeightsFile& file) {
  const auto manifest = file.meta.extra.find("manifest");
  if (!file.data_of_run || manifest == file.meta.extra.end()) {
    return "";
  }
  const train::Manifest was = train::manifest_of(manifest->second, file.path.string());
  const bool own = !file.config.data.validation.empty();
  const std::string& content = own ? was.validation_data : was.train_data;
  const std::vector<std::string>& files = files_of(file.config.data);
  const std::string now = io::fingerprint(files);
  return content == now ? ""
                        : fmt::format("{} is not the data of the training run ({} instead of {})",
                                      fmt::join(files, ", "), now, content);
}

nlohmann::ordered_json json_of(const Evaluation& result, const WeightsFile& file,
                               const sparse::Store& store) {
  nlohmann::ordered_json json{
      {"file", file.path.string()},        {"step", file.meta.step},
      {"val_loss", result.loss},           {"samples", result.samples},
      {"predictions", result.predictions}, {"data", files_of(file.config.data)}};
  if (result.top1) {
    json["val_top1"] = *result.top1;
  }
  if (result.top5) {
    json["val_top5"] = *result.top5;
  }
  if (file.config.data.kind != "images") {
    json["perplexity"] = std::exp(result.loss);
  }
  if (file.config.data.kind == "bytes" || file.config.data.kind == "chars") {
    json["bits_per_byte"] = result.loss / std::log(2.0);
  }
  json["parameters"] = store.total_size();
  json["kept_parameters"] = store.total_kept();
  json["seconds"] = result.seconds;
  return json;
}

/// The tokens of --data.
io::TokenDataset open_text(const EvalArguments& arguments, const WeightsFile& file) {
  check(file.config.data.kind != "images",
        "{} classifies images: --data is for networks that predict tokens", file.path.string());
  const TextCodec codec(file, arguments.tokenizer);
  io::DataConfig data = file.config.data;
  data.kind = codec.tokenizer() ? "tokens" : data.kind;
  data.train = {arguments.data};
  data.validation.clear();
  data.validation_fraction = 0;
  return io::TokenDataset::open(data, io::Split::train,
                                {.context = 0,
                                 .vocabulary = file.problem.classes,
                                 .characters = &file.characters,
                                 .tokenizer = codec.tokenizer() ? &*codec.tokenizer() : nullptr});
}

/// Samples of a micro-batch.
int64_t micro_batch_of(const io::Config& config) {
  return config.train.micro_batch > 0 ? config.train.micro_batch : config.train.global_batch;
}

int eval_text(const EvalArguments& arguments, const WeightsFile& file) {
  const io::TokenDataset text = open_text(arguments, file);
  const int64_t context = file.problem.features;
  const int64_t stride = arguments.stride > 0 ? arguments.stride : context;
  check(stride <= context,
        "--stride {} is larger than the context of {}: tokens between windows would not count; "
        "use a stride up to the context",
        stride, context);
  check(context >= 2, "{} has a context of {}: windows need two tokens", file.path.string(),
        context);
  check(text.size() >= 2, "{} has {} tokens; a perplexity needs two", arguments.data, text.size());
  const double begin = now_seconds();
  const auto windows = train::sliding_windows(text.size(), context, stride);
  // Imported checkpoints say nothing of memory: windows of a long context come one by one.
  constexpr int64_t kTokens = 4096;
  const int64_t micro_batch =
      std::min<int64_t>(file.config.train.micro_batch > 0 ? file.config.train.micro_batch
                                                          : std::max(kTokens / context, int64_t{1}),
                        std::ssize(windows));
  Inference network(file, file.problem, micro_batch);
  WorkProgress progress("eval, windows");
  const train::TextLoss result = train::text_loss(
      network.stage, micro_batch, windows,
      [&text](int64_t first, std::span<int32_t> out) { text.read(first, out); },
      [&progress](int64_t done, int64_t total) { progress.show(done, total); });
  const double loss = result.sum / static_cast<double>(result.predictions);
  check(std::isfinite(loss), "{}: the loss is {}: training has diverged; use an earlier checkpoint",
        arguments.file, loss);
  if (arguments.json) {
    print_json({{"file", file.path.string()},
                {"step", file.meta.step},
                {"data", arguments.data},
                {"context", context},
                {"stride", stride},
                {"windows", windows.size()},
                {"tokens", text.size()},
                {"predictions", result.predictions},
                {"loss", loss},
                {"perplexity", std::exp(loss)},
                {"seconds", now_seconds() - begin}});
    return 0;
  }
  print(table({{"loss", fmt::format("{:.6f}", loss)},
               {"perplexity", fmt::format("{:.4f}", std::exp(loss))},
               {"predictions", grouped(result.predictions)}}));
  return 0;
}

int eval(const EvalArguments& arguments) {
  WeightsFile file = open_weights(arguments.file, arguments.config);
  if (!arguments.data.empty()) {
    return eval_text(arguments, file);
  }
  check_used(*arguments.command,
             {{"--stride", false, "with --data FILE"}, {"--tokenizer", false, "with --data FILE"}});
  check(
      !files_of(file.config.data).empty(),
      "{} names no data to evaluate: add --data FILE (a text or a token file), or name files with "
      "--set 'data.validation=[\"FILE\"]'",
      file.path.string());
  // Those of the weights: these data may have fewer.
  (file.config.data.kind == "images" ? file.config.model.classes : file.config.model.vocabulary) =
      file.problem.classes;
  const auto source = train::open_source(
      file.config, file.characters.size() > 0 ? &file.characters : nullptr, true);
  if (const std::string note = data_note(file); !note.empty()) {
    print_note(note);
  }
  const int64_t micro_batch = micro_batch_of(file.config);
  Inference network(file, source->problem(), micro_batch);
  const Evaluation result = evaluate(network.stage, *source, file.config, micro_batch);
  check(std::isfinite(result.loss),
        "{}: the validation loss is {}: training has diverged; use an earlier checkpoint",
        arguments.file, result.loss);
  const nlohmann::ordered_json json = json_of(result, file, network.stage.store());
  if (arguments.json) {
    print_json(json);
    return 0;
  }
  Rows rows{{"val_loss", fmt::format("{:.6f}", result.loss)}};
  for (const char* key : {"val_top1", "val_top5", "perplexity", "bits_per_byte"}) {
    if (json.contains(key)) {
      rows.push_back({key, fmt::format("{:.4f}", json[key].get<double>())});
    }
  }
  rows.push_back(
      {file.config.data.kind == "images" ? "images" : "tokens", grouped(result.predictions)});
  const io::DataConfig& data = file.config.data;
  rows.push_back({data.validation.empty() ? "last part of" : "data",
                  fmt::format("{}", fmt::join(files_of(data), ", "))});
  print(table(rows));
  return 0;
}

}  // namespace

void register_eval(CLI::App& app, Action& chosen) {
  auto arguments = std::make_shared<EvalArguments>();
  CLI::App* command = app.add_subcommand(
      "eval", "Validation loss, accuracy of images, perplexity, bits per byte of a checkpoint");
  command->add_option("file", arguments->file, "checkpoint, or with --config plain HDF5")
      ->transform(checkpoint_path)
      ->required();
  command->add_option("--config", arguments->config.file, "TOML file, instead of the checkpoint's");
  command->add_option("--set", arguments->config.overrides, "section.key=value, e.g. other data")
      ->allow_extra_args(false);
  command->add_option("--data", arguments->data,
                      "token file or text: its perplexity by sliding windows");
  option(*command, "--stride", arguments->stride,
         "of --data: tokens from one window to the next; 0: the context", CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      ->add_option("--tokenizer", arguments->tokenizer,
                   "of --data: tokenizer.json, tokenizer.model or a checkpoint, instead of the "
                   "checkpoint's")
      ->transform(tokenizer_path);
  command->add_flag("--json", arguments->json, "print one JSON object");
  arguments->command = command;
  command->callback([arguments, &chosen] { chosen = [arguments] { return eval(*arguments); }; });
}

}  // namespace espalier::cli
