// espalier sample FILE.h5 --prompt TEXT: generates text with a trained network, token by token,
// with a key-value cache (src/train/generation/generator.h).
//
// A text depends on the seed, its prompt and the options, not on the other prompts. The network
// reads the last `context` tokens only.
#include <algorithm>
#include <cmath>
#include <map>

#include "io/files/mapped_file.h"
#include "src/cli/commands.h"
#include "src/cli/shared/console.h"
#include "src/cli/shared/options.h"
#include "src/cli/shared/paths.h"
#include "src/cli/shared/text_codec.h"
#include "src/cli/shared/weights_file.h"
#include "src/core/trace.h"
#include "src/hub/end_tokens.h"
#include "src/train/generation/generator.h"
#include "src/train/generation/sampler.h"

namespace espalier::cli {
namespace {

struct SampleArguments {
  std::string file;
  ConfigSource config;
  std::string tokenizer;
  std::vector<std::string> prompts;
  std::string prompts_file;
  std::vector<std::string> stops;
  int64_t tokens = 200;
  train::Sampling sampling;
  uint64_t seed = 1;
  bool json = false;
  const CLI::App* command = nullptr;
};

/// A sequence being written.
struct Written {
  std::string prompt;
  size_t prompt_tokens;
  train::SequenceRandom random;
  TextCodec::Decoder decoder;
  train::GrowingText text;
  std::vector<int32_t> tokens{};
  std::string finish{};  ///< its reason; empty: it goes on
};

std::vector<std::string> lines_of(const std::string& path) {
  const io::MappedFile file(path, "file of prompts");
  const std::string_view all(reinterpret_cast<const char*>(file.bytes().data()),
                             file.bytes().size());
  std::vector<std::string> lines;
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find('\n', at), all.size());
    lines.emplace_back(all.substr(at, end - at));
    if (lines.back().ends_with('\r')) {
      lines.back().pop_back();
    }
    at = end + 1;
  }
  return lines;
}

std::vector<std::string> prompts_of(const SampleArguments& arguments) {
  std::vector<std::string> prompts = arguments.prompts;
  if (!arguments.prompts_file.empty()) {
    for (std::string& line : lines_of(arguments.prompts_file)) {
      prompts.push_back(std::move(line));
    }
  }
  if (prompts.empty()) {
    throw Usage("there is no prompt: give --prompt TEXT or --prompts FILE");
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty()) {
      throw Usage(
          fmt::format("prompt {} of --prompt or --prompts is empty: give at least one "
                      "character",
                      i + 1));
    }
  }
  for (const std::string& stop : arguments.stops) {
    if (stop.empty()) {
      throw Usage("--stop is empty: give at least one character");
    }
  }
  return prompts;
}

class Sampler {
 public:
  Sampler(const SampleArguments& arguments, const WeightsFile& file)
      : arguments_(arguments),
        file_(file),
        codec_(file, arguments.tokenizer),
        end_tokens_(end_tokens_of(file)) {
    std::map<std::vector<int32_t>, int64_t> seen;
    for (const std::string& prompt : prompts_of(arguments)) {
      std::vector<int32_t> tokens = codec_.encode(prompt, "--prompt");
      check(static_cast<int64_t>(tokens.size()) <= file.problem.features,
            "prompt {} has {} tokens, more than the context of {} that {} reads; shorten it",
            prompts_.size() + 1, tokens.size(), file.problem.features, file.path.string());
      written_.push_back({.prompt = prompt,
                          .prompt_tokens = tokens.size(),
                          .random = {arguments.seed, tokens, seen[tokens]++},
                          .decoder = {codec_, tokens},
                          .text = train::GrowingText(arguments.stops)});
      prompts_.push_back(std::move(tokens));
    }
  }

  int run() {
    Inference network(file_, file_.problem, 1, /*generation=*/true);
    size_t longest = 0;
    for (const std::vector<int32_t>& prompt : prompts_) {
      longest = std::max(longest, prompt.size());
    }
    train::Generator generator(file_.config, file_.problem, network.stage,
                               {.sequences = static_cast<int64_t>(prompts_.size()),
                                .tokens = static_cast<int64_t>(longest) +
                                          std::min(arguments_.tokens, file_.problem.features)});
    if (streams()) {
      print(written_.front().prompt);
    }
    const double begin = now_seconds();
    generator.start(prompts_);
    read_seconds_ = now_seconds() - begin;
    const double decoding = now_seconds();
    for (int64_t number = 0; number < arguments_.tokens && choose(generator, number); ++number) {
      if (number + 1 < arguments_.tokens) {
        generator.append(next_);
        decoded_ += std::ranges::count_if(next_, [](int32_t token) { return token >= 0; });
      }
    }
    decode_seconds_ = now_seconds() - decoding;
    finish();
    return 0;
  }

 private:
  static std::vector<int32_t> end_tokens_of(const WeightsFile& file) {
    std::vector<std::string> notes;  // `import` has printed them
    return hub::end_tokens(file.meta.extra, file.problem.classes, file.path.string(), notes);
  }
  /// The reason why `token` ends a text; empty: it does not.
  std::string end_by(int32_t token) const {
    if (end_tokens_.empty()) {
      return codec_.is_special(token) ? "special token" : "";
    }
    return std::ranges::find(end_tokens_, token) != end_tokens_.end() ? "end token" : "";
  }
  bool streams() const { return written_.size() == 1 && !arguments_.json; }

  /// Draws token `number` of each sequence; returns whether any sequence goes on.
  bool choose(const train::Generator& generator, int64_t number) {
    next_.assign(written_.size(), train::Generator::kEnded);
    bool any = false;
    for (size_t b = 0; b < written_.size(); ++b) {
      Written& one = written_[b];
      if (!one.finish.empty()) {
        continue;
      }
      const std::span<const float> logits = generator.logits(static_cast<int64_t>(b));
      check(std::ranges::all_of(logits, [](float x) { return std::isfinite(x); }),
            "{}: the predictions are not finite: training has diverged; use an earlier checkpoint",
            file_.path.string());
      const int32_t token = train::draw(logits.first(codec_.known(logits.size())),
                                        arguments_.sampling, one.random.uniform(number));
      one.tokens.push_back(token);
      one.finish = end_by(token);
      if (!one.finish.empty()) {
        // The text ends before this token.
      } else if (one.text.add(one.decoder.add(token))) {
        one.finish = "stop";
      } else {
        next_[b] = token;
        any = true;
      }
      if (streams()) {
        print(one.text.take());
      }
    }
    return any;
  }

  void finish() {
    for (Written& one : written_) {
      if (const std::string rest = one.text.ended() ? "" : one.decoder.rest(); !rest.empty()) {
        one.finish = one.text.add(rest) ? "stop" : one.finish;
      }
      one.finish = one.finish.empty() ? "length" : one.finish;
    }
    if (arguments_.json) {
      print_json(json());
    } else if (streams()) {
      print(written_.front().text.take(true) + "\n");
    } else {
      for (size_t b = 0; b < written_.size(); ++b) {
        print(
            fmt::format("=== {} ===\n{}{}\n", b + 1, written_[b].prompt, written_[b].text.text()));
      }
    }
    int64_t prompt_tokens = 0;
    for (const Written& one : written_) {
      prompt_tokens += static_cast<int64_t>(one.prompt_tokens);
    }
    // The prompts' time includes the first token of each text.
    print_note(fmt::format("read {} tokens at {:.1f} tokens/s, wrote {} at {:.1f} tokens/s",
                           grouped(prompt_tokens), rate(prompt_tokens, read_seconds_),
                           grouped(written_tokens()), rate(decoded_, decode_seconds_)));
  }

  int64_t written_tokens() const {
    int64_t tokens = 0;
    for (const Written& one : written_) {
      tokens += static_cast<int64_t>(one.tokens.size());
    }
    return tokens;
  }

  static double rate(int64_t tokens, double seconds) {
    return static_cast<double>(tokens) / std::max(seconds, 1e-9);
  }

  nlohmann::ordered_json json() const {
    nlohmann::ordered_json texts = nlohmann::ordered_json::array();
    for (const Written& one : written_) {
      texts.push_back({{"prompt", one.prompt},
                       {"prompt_tokens", one.prompt_tokens},
                       {"text", one.text.text()},
                       {"tokens", one.tokens},
                       {"finish", one.finish}});
    }
    return {{"file", file_.path.string()},
            {"seed", arguments_.seed},
            {"texts", texts},
            {"tokens", written_tokens()},
            {"read_seconds", read_seconds_},
            {"write_seconds", decode_seconds_},
            {"tokens_per_second", rate(decoded_, decode_seconds_)}};
  }

  const SampleArguments& arguments_;
  const WeightsFile& file_;
  TextCodec codec_;
  std::vector<int32_t> end_tokens_;  ///< empty: special tokens end a text
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<Written> written_;
  std::vector<int32_t> next_;
  int64_t decoded_ = 0;  ///< tokens that the network has read one by one
  double read_seconds_ = 0, decode_seconds_ = 0;
};

int sample(const SampleArguments& arguments) {
  // Before a large file is opened. CLI11's ranges take "nan".
  const std::vector<std::string> checked = prompts_of(arguments);
  if (std::isnan(arguments.sampling.temperature) || std::isnan(arguments.sampling.top_p)) {
    throw Usage("--temperature and --top-p take numbers: 0 to 1000, and 0 to 1");
  }
  const bool draws = arguments.sampling.temperature > 0;
  constexpr std::string_view kDraws = "with a --temperature above 0";
  check_used(*arguments.command, {{"--top-k", draws, kDraws}, {"--top-p", draws, kDraws}});
  const WeightsFile file = open_weights(arguments.file, arguments.config);
  return Sampler(arguments, file).run();
}

}  // namespace

void register_sample(CLI::App& app, Action& chosen) {
  auto arguments = std::make_shared<SampleArguments>();
  CLI::App* command = app.add_subcommand("sample", "Write text with a trained network");
  command->add_option("file", arguments->file, "checkpoint, or with --config plain HDF5")
      ->transform(checkpoint_path)
      ->required();
  command
      ->add_option(
          "--prompt", arguments->prompts,
          "text to go on from; for data of kind tokens without a tokenizer, token numbers; "
          "repeated: several texts at a time")
      ->allow_extra_args(false);
  command->add_option("--prompts", arguments->prompts_file, "file with one prompt a line");
  option(*command, "--tokens", arguments->tokens, "tokens to write", CLI::NonNegativeNumber)
      ->capture_default_str();
  option(*command, "--temperature", arguments->sampling.temperature,
         "0: always the most likely token; 1: the probabilities of the network",
         CLI::Range(0.0, 1000.0))
      ->capture_default_str();
  option(*command, "--top-k", arguments->sampling.top_k,
         "draw among the K most likely tokens; 0: all", CLI::NonNegativeNumber)
      ->capture_default_str();
  option(*command, "--top-p", arguments->sampling.top_p,
         "draw among the fewest tokens whose probabilities reach P; 1: all", CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_option("--stop", arguments->stops, "a text ends before this one; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--seed", arguments->seed, "the same seed writes the same text")
      ->capture_default_str();
  command
      ->add_option("--tokenizer", arguments->tokenizer,
                   "tokenizer.json, tokenizer.model or a checkpoint, instead of the "
                   "checkpoint's")
      ->transform(tokenizer_path);
  command->add_option("--config", arguments->config.file, "TOML file, instead of the checkpoint's");
  command
      ->add_option("--set", arguments->config.overrides,
                   "section.key=value, e.g. sparse.storage=dense")
      ->allow_extra_args(false);
  command->add_flag("--json", arguments->json, "print one JSON object");
  arguments->command = command;
  command->callback([arguments, &chosen] { chosen = [arguments] { return sample(*arguments); }; });
}

}  // namespace espalier::cli
