// espalier sample FILE.h5 --prompt TEXT: generates text with a trained network, token by token.
//
// Each token is drawn from softmax(logits / temperature) over the top-k. Its random number is
// Philox(seed, number of the token), so equal seeds give equal texts. The network reads the last
// `context` tokens only.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>

#include "src/cli/commands.h"
#include "src/cli/console.h"
#include "src/cli/weights_file.h"
#include "src/core/mirror.h"
#include "src/core/rng.h"

namespace espalier::cli {
namespace {

struct SampleArguments {
  std::string file;
  std::string config;
  std::string prompt;
  int64_t tokens = 200;
  double temperature = 0.8;
  int64_t top_k = 0;  ///< 0: all
  uint64_t seed = 1;
};

/// Uniform in [0, 1), 53 bits.
double uniform_number(uint64_t seed, int64_t number) {
  constexpr uint64_t kSampling = 0x73616d70;  // key of a separate random stream
  const Philox bits = philox(mix(seed, kSampling), 0, static_cast<uint64_t>(number));
  const uint64_t joined = uint64_t{bits[1]} << 32 | bits[0];
  return static_cast<double>(joined >> 11) * 0x1.0p-53;
}

/// Draws the next token from the logits of all tokens.
int32_t draw(std::span<const float> logits, const SampleArguments& how, int64_t number) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](int32_t token) { return logits[static_cast<size_t>(token)]; };
  const size_t all = logits.size();
  const size_t kept = how.temperature == 0 ? 1
                      : how.top_k == 0     ? all
                                           : std::min(all, static_cast<size_t>(how.top_k));
  // Equal logits: the lower token first, so the order is unique.
  std::partial_sort(
      order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(),
      [&](int32_t a, int32_t b) { return logit(a) != logit(b) ? logit(a) > logit(b) : a < b; });
  order.resize(kept);
  if (kept == 1) {
    return order.front();
  }
  const double top = static_cast<double>(logit(order.front()));
  std::vector<double> sums;  // running sums of unnormalised probabilities
  double sum = 0;
  for (const int32_t token : order) {
    sum += std::exp((static_cast<double>(logit(token)) - top) / how.temperature);
    sums.push_back(sum);
  }
  const auto found = std::ranges::upper_bound(sums, uniform_number(how.seed, number) * sum);
  const auto place = std::min(static_cast<size_t>(found - sums.begin()), order.size() - 1);
  return order[place];
}

/// Token numbers of a prompt, separated by blanks or commas.
std::vector<int32_t> token_numbers(std::string prompt, const WeightsFile& file) {
  std::ranges::replace(prompt, ',', ' ');
  std::istringstream words(prompt);
  std::vector<int32_t> tokens;
  for (std::string word; words >> word;) {
    const bool digits = word.size() < 10 && word.find_first_not_of("0123456789") == word.npos;
    const int64_t token = digits ? std::stoll(word) : -1;
    if (token < 0 || token >= file.problem.classes) {
      throw Usage(
          fmt::format("--prompt: \"{}\" is no token of {}: data of kind \"tokens\" take "
                      "numbers from 0 to {}",
                      word, file.path.string(), file.problem.classes - 1));
    }
    tokens.push_back(static_cast<int32_t>(token));
  }
  return tokens;
}

/// The vocabulary of text; empty for data of token numbers.
io::Vocabulary vocabulary_of(const WeightsFile& file) {
  const std::string& kind = file.config.data.kind;
  check(kind != "images", "{} classifies images: there is nothing to sample", file.path.string());
  check(kind != "chars" || file.characters.size() > 0,
        "{} does not hold the characters of its vocabulary: prune or import it with --config, "
        "where the data of kind \"chars\" are at hand",
        file.path.string());
  return kind == "bytes" ? io::Vocabulary::all_bytes() : file.characters;
}

int sample(const SampleArguments& arguments) {
  const WeightsFile file =
      open_weights(arguments.file, {.file = arguments.config, .overrides = {}});
  const io::Vocabulary vocabulary = vocabulary_of(file);
  const bool text = file.config.data.kind != "tokens";
  std::vector<int32_t> tokens =
      text ? vocabulary.encode(arguments.prompt) : token_numbers(arguments.prompt, file);
  if (tokens.empty()) {
    throw Usage("--prompt is empty: give at least one character");
  }
  Inference network(file, file.problem, 1);
  const auto context = static_cast<size_t>(file.config.model.context);
  print(arguments.prompt);
  for (int64_t number = 0; number < arguments.tokens; ++number) {
    const size_t seen = std::min(tokens.size(), context);
    const Mirror logits(network.backend.stream(),
                        network.stage.predict(std::span(tokens).last(seen)));
    const auto row = logits.read().host().span<const float>();
    check(std::ranges::all_of(row, [](float x) { return std::isfinite(x); }),
          "{}: the predictions are not finite: these weights have diverged", file.path.string());
    tokens.push_back(draw(row, arguments, number));
    print(text ? vocabulary.decode({&tokens.back(), 1}) : fmt::format(" {}", tokens.back()));
  }
  print("\n");
  return 0;
}

}  // namespace

void register_sample(CLI::App& app, Action& chosen) {
  auto arguments = std::make_shared<SampleArguments>();
  CLI::App* command = app.add_subcommand("sample", "Write text with a trained network");
  command->add_option("file", arguments->file, "checkpoint, or with --config plain HDF5")
      ->required();
  command
      ->add_option("--prompt", arguments->prompt,
                   "text to go on from; for data of kind tokens, token numbers")
      ->required();
  command->add_option("--tokens", arguments->tokens, "tokens to write")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--temperature", arguments->temperature,
                   "0: always the most likely token; 1: the probabilities of the network")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1000.0));
  command->add_option("--top-k", arguments->top_k, "draw among the K most likely; 0: all")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--seed", arguments->seed, "the same seed writes the same text")
      ->capture_default_str();
  command->add_option("--config", arguments->config, "TOML file, instead of the checkpoint's");
  command->callback([arguments, &chosen] { chosen = [arguments] { return sample(*arguments); }; });
}

}  // namespace espalier::cli
