#include "src/train/generation/generator.h"

#include <algorithm>

#include "src/core/mirror.h"

namespace espalier::train {
namespace {

/// Prompts of so few tokens are multiplied like new tokens; longer ones are padded to whole steps,
/// which limits the number of shapes: kernels are set up by shape.
constexpr int64_t kFewTokens = 8;
constexpr int64_t kStep = 16;
/// Key of the passes in the store (sparse::Store::Pass); Part has those from 0 on.
constexpr int kPassKey = -1;

int64_t padded_tokens(int64_t count, int64_t context) {
  return count <= kFewTokens ? count : std::min((count + kStep - 1) / kStep * kStep, context);
}

/// Products with few rows read memory. Measured (benchmarks/results/generation.md): bytes of a
/// position beside a kept value, and the rate of sparse products over that of dense ones.
constexpr double kPositionBytes = 2.2;
constexpr double kSparseRate = 0.7;

}  // namespace

void choose_generation_storages(const io::Config& config, sparse::Store& store) {
  for (sparse::Parameter& parameter : store.parameters()) {
    const bool free = config.sparse.storage.for_name(parameter.spec.name) == "auto";
    const auto value = static_cast<double>(size_of(store.options().dtype));
    const bool dense_is_faster = static_cast<double>(parameter.kept()) * (value + kPositionBytes) >
                                 kSparseRate * static_cast<double>(parameter.size()) * value;
    if (free && !parameter.full() && dense_is_faster &&
        parameter.storage == sparse::Storage::sparse) {
      store.set_storage(parameter, sparse::Storage::dense);
    }
  }
}

Generator::Options Generator::within(const Options& options, const ProblemShape& problem) {
  const int64_t all = problem.features;
  return {.sequences = options.sequences,
          .tokens = options.tokens > 0 ? std::min(options.tokens, all) : all};
}

Generator::Generator(const io::Config& config, const ProblemShape& problem, Stage& stage,
                     const Options& options)
    : Generator(
          problem, stage, within(options, problem),
          measure(config, problem, stage.stream().arena().on_device(), within(options, problem))) {
  // Products with few rows make the lists that they read on their first call.
  const std::vector<int32_t> zeros(static_cast<size_t>(options.sequences));
  read_tokens(zeros, zeros);
}

Generator::Generator(const ProblemShape& problem, Stage& stage, const Options& options,
                     size_t tape_bytes)
    : classes_(problem.classes),
      context_(options.tokens),
      stage_(stage),
      cache_(stage.stream().arena(), {.sequences = options.sequences,
                                      .context = options.tokens,
                                      .dtype = stage.store().options().dtype}),
      tape_(stage.stream().arena(), tape_bytes, stage.stream().arena().dry()),
      history_(static_cast<size_t>(options.sequences)),
      cached_(static_cast<size_t>(options.sequences)),
      ended_(static_cast<size_t>(options.sequences)),
      logits_(static_cast<size_t>(
          stage.stream().arena().dry() ? 0 : options.sequences * problem.classes)) {
  const int64_t sequences = options.sequences;
  const auto numbers = [&](int64_t count) {
    return stage.stream().arena().allocate(Memory::activation, "tokens", DType::int32,
                                           Shape{count});
  };
  const int64_t most = std::max(context_, sequences);
  inputs_ = {.tokens = numbers(most),
             .positions = numbers(most),
             .first = numbers(sequences),
             .counts = numbers(sequences),
             .lengths = numbers(sequences)};
}

/// The largest tape of a prompt and of a decoding pass, from a run without memory.
size_t Generator::measure(const io::Config& config, const ProblemShape& problem, bool on_device,
                          const Options& options) {
  Arena host(true);
  Arena arena = on_device ? Arena(host, nullptr) : Arena(true);
  Stream stream(arena, 1);
  Stage stage(config, problem, stream, kernels::by_name("dry"),
              {.micro_batch = 1, .training = false, .dry = true});
  Generator generator(problem, stage, options, 0);
  const std::vector<int32_t> prompt(static_cast<size_t>(options.tokens));
  const std::vector<int32_t> zeros(static_cast<size_t>(options.sequences));
  generator.read_prompt(0, prompt);
  const size_t few = generator.tape_.high_water();
  generator.read_prompt(0, std::span(prompt).first(std::min<size_t>(prompt.size(), kFewTokens)));
  generator.read_tokens(zeros, zeros);
  return std::max(few, generator.tape_.high_water());
}

void Generator::write(const Tensor& to, std::span<const int32_t> numbers) {
  if (dry()) {
    return;
  }
  const Mirror mirror(stage_.stream(), to);
  std::ranges::copy(numbers, mirror.host().get<int32_t>());
  mirror.write();
}

/// `shape`: [B, T] of the tokens.
model::Pass Generator::make_pass(model::CachedPass& cached, const Shape& shape) {
  return {.stream = stage_.stream(),
          .kernels = stage_.kernels(),
          .tape = tape_,
          .dtype = stage_.store().options().dtype,
          .samples = shape[0],
          .inputs = inputs_.tokens.tensor().as(DType::int32, shape),
          .cached = &cached};
}

void Generator::read_prompt(int64_t sequence, std::span<const int32_t> tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  const int64_t width = padded_tokens(count, context());
  std::vector<int32_t> padded(tokens.begin(), tokens.end());
  padded.resize(static_cast<size_t>(width));  // causal attention does not read the padding
  const auto one = [](const Buffer& buffer) { return buffer.tensor().elements(0, 1); };
  write(inputs_.tokens.tensor().elements(0, width), padded);
  write(one(inputs_.first), std::array{0});
  write(one(inputs_.counts), std::array{static_cast<int32_t>(count)});
  model::CachedPass cached{.cache = cache_,
                           .first_sequence = sequence,
                           .few_rows = width <= kFewTokens,
                           .first = one(inputs_.first),
                           .counts = one(inputs_.counts),
                           .lengths = one(inputs_.counts)};
  tape_.clear();
  model::Pass pass = make_pass(cached, {1, width});
  const sparse::Store::Pass values(stage_.store(), kPassKey);
  const model::Network& network = stage_.parts().front()->network();
  const Tensor hidden = network.hidden(pass);
  cached.few_rows = true;
  fetch(network.logits_of(pass, hidden, count - 1, 1), sequence);
  cached_[static_cast<size_t>(sequence)] = count;
}

/// One token for each sequence.
void Generator::read_tokens(std::span<const int32_t> tokens, std::span<const int32_t> positions) {
  const int64_t count = sequences();
  const std::vector<int32_t> ones(tokens.size(), 1);
  std::vector<int32_t> lengths(positions.begin(), positions.end());
  for (int32_t& length : lengths) {
    ++length;
  }
  const auto all = [count](const Buffer& buffer) { return buffer.tensor().elements(0, count); };
  write(all(inputs_.tokens), tokens);
  write(all(inputs_.positions), positions);
  write(all(inputs_.first), positions);
  write(all(inputs_.counts), ones);
  write(all(inputs_.lengths), lengths);
  model::CachedPass cached{.cache = cache_,
                           .one_token = true,
                           .few_rows = true,
                           .positions = all(inputs_.positions),
                           .first = all(inputs_.first),
                           .counts = all(inputs_.counts),
                           .lengths = all(inputs_.lengths)};
  tape_.clear();
  model::Pass pass = make_pass(cached, {count, 1});
  const sparse::Store::Pass values(stage_.store(), kPassKey);
  const model::Network& network = stage_.parts().front()->network();
  const Tensor hidden = network.hidden(pass);
  fetch(network.logits_of(pass, hidden, 0, count), 0);
}

/// Copies logits to the host.
void Generator::fetch(const Tensor& logits, int64_t first_sequence) {
  if (dry()) {
    return;
  }
  const Mirror mirror(stage_.stream(), logits);
  const auto from = mirror.read().host().span<const float>();
  std::ranges::copy(from, logits_.begin() + first_sequence * classes_);
}

void Generator::start(std::span<const std::vector<int32_t>> prompts) {
  require(static_cast<int64_t>(prompts.size()) == sequences(), "one prompt for each sequence",
          prompts.size(), sequences());
  for (size_t b = 0; b < prompts.size(); ++b) {
    const std::vector<int32_t>& prompt = prompts[b];
    check(!prompt.empty(), "prompt {} has no tokens; give at least one character", b + 1);
    check(static_cast<int64_t>(prompt.size()) <= context(),
          "prompt {} has {} tokens, more than the context of {}; shorten it", b + 1, prompt.size(),
          context());
    for (const int32_t token : prompt) {
      check(token >= 0 && token < classes_,
            "prompt {} has token {}, but the network knows tokens from 0 to {}; use the tokenizer "
            "that it was trained with",
            b + 1, token, classes_ - 1);
    }
  }
  for (size_t b = 0; b < prompts.size(); ++b) {
    history_[b] = prompts[b];
    ended_[b] = false;
    read_prompt(static_cast<int64_t>(b), history_[b]);
  }
}

void Generator::append(std::span<const int32_t> tokens) {
  require(static_cast<int64_t>(tokens.size()) == sequences(), "one token for each sequence",
          tokens.size(), sequences());
  // Sequences that are not read keep their last place in the cache: its content does not matter.
  std::vector<int32_t> next(tokens.size(), 0);
  std::vector<int32_t> positions(tokens.size(), 0);
  std::vector<int64_t> anew;
  bool any = false;
  for (size_t b = 0; b < tokens.size(); ++b) {
    ended_[b] = ended_[b] || tokens[b] == kEnded;
    positions[b] = static_cast<int32_t>(std::min(cached_[b], context() - 1));
    if (ended_[b]) {
      continue;
    }
    history_[b].push_back(tokens[b]);
    if (cached_[b] == context()) {
      anew.push_back(static_cast<int64_t>(b));
      continue;
    }
    next[b] = tokens[b];
    any = true;
    ++cached_[b];
  }
  if (any) {
    read_tokens(next, positions);
  }
  for (const int64_t sequence : anew) {
    const std::span<const int32_t> all = history_[static_cast<size_t>(sequence)];
    read_prompt(sequence, all.last(static_cast<size_t>(context())));
  }
}

std::span<const float> Generator::logits(int64_t sequence) const {
  return std::span(logits_).subspan(static_cast<size_t>(sequence * classes_),
                                    static_cast<size_t>(classes_));
}

}  // namespace espalier::train
