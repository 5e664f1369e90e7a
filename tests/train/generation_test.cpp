// Generation with a key-value cache: the same predictions as without one, for every storage, type
// and family of decoders; a sequence's bits do not depend on its batch. Draws by temperature, top k
// and top p; stop strings across tokens. Perplexity by sliding windows.
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "src/core/rng.h"
#include "src/kernels/backend.h"
#include "src/train/generation/generator.h"
#include "src/train/generation/perplexity.h"
#include "src/train/generation/sampler.h"
#include "src/train/stage/stage.h"
#include "tests/support/support.h"

namespace espalier::train::generation_test {
namespace {

using ::testing::ThrowsMessage;

constexpr int64_t kVocabulary = 61;
constexpr int64_t kContext = 40;
using Tokens = std::vector<int32_t>;

struct Setting {
  std::string storage = "dense";  ///< of pruned weights; empty: nothing is pruned
  std::string dtype = "fp32";
  std::string family{};  ///< of a decoder; empty: the GPT
  int64_t window = 0;
  bool generation = true;
  int threads = 2;
};

io::Config config_of(const Setting& setting) {
  io::Config config;
  config.model.kind = "gpt";
  config.model.layers = 2;
  config.model.heads = 2;
  config.model.width = 48;
  config.model.context = kContext;
  if (!setting.family.empty()) {
    config.model.kind = "decoder";
    config.model.width = 64;
    config.model.family = setting.family;
    config.model.heads = 4;
    config.model.kv_heads = setting.family == "gpt2" || setting.family == "opt" ? 0 : 2;
    config.model.head_width = setting.family.starts_with("gemma") ? 16 : 0;
    config.model.window = setting.window;
    config.model.full_every = setting.family == "gemma3" ? 2 : 0;
  }
  config.train.dtype = setting.dtype;
  config.sparse.storage.fallback = setting.storage.empty() ? "dense" : setting.storage;
  config.sparse.block = setting.storage == "block" ? 8 : 0;
  return config;
}

ProblemShape problem_of(const io::Config& config) {
  return {.classes = kVocabulary,
          .features = config.model.context,
          .rows = config.model.context,
          .input_dtype = DType::int32};
}

/// Keeps two thirds of the blocks of 8 x 8 elements.
sparse::Mask mask_of(const sparse::ParameterSpec& spec, const sparse::Mask& all) {
  sparse::Mask mask = all;
  const int64_t cols = spec.shape.cols();
  for (int64_t i = 0; spec.prunable && i < mask.size(); ++i) {
    const uint64_t block =
        mix(std::hash<std::string>()(spec.name), static_cast<uint64_t>(i / cols / 8));
    mask.set(i, mix(block, static_cast<uint64_t>(i % cols / 8)) % 3 != 0);
  }
  return mask;
}

/// A network with random weights, larger than initial ones: predictions depend on all tokens.
struct Network {
  Network(const Setting& setting, const io::Config& of)
      : config(of),
        stream(arena, kernels::usable_threads(setting.threads)),
        stage(config, problem_of(config), stream, kernels::by_name("auto"),
              {.micro_batch = 3, .training = false, .generation = setting.generation}) {
    sparse::Store& store = stage.store();
    store.initialise(5, [](const sparse::Parameter& parameter) {
      return parameter.spec.shape.rank() == 2 ? 6.0 : 1.0;
    });
    if (!setting.storage.empty()) {
      std::vector<sparse::Mask> masks = store.masks();
      for (size_t p = 0; p < masks.size(); ++p) {
        masks[p] = mask_of(store.parameters()[p].spec, masks[p]);
      }
      store.set_masks(masks);
    }
  }
  explicit Network(const Setting& setting) : Network(setting, config_of(setting)) {}

  io::Config config;
  Arena arena;
  Stream stream;
  Stage stage;
};

Tokens prompt_of(uint64_t seed, size_t length) {
  Tokens prompt;
  for (size_t i = 0; i < length; ++i) {
    prompt.push_back(static_cast<int32_t>(mix(seed, i) % kVocabulary));
  }
  return prompt;
}

/// Logits of the token after `tokens`, without a cache.
std::vector<float> predicted(Network& network, std::span<const int32_t> tokens) {
  const size_t seen = std::min<size_t>(tokens.size(), kContext);
  const auto logits = network.stage.predict(tokens.last(seen)).span<const float>();
  return {logits.begin(), logits.end()};
}

int32_t most_likely(std::span<const float> logits) { return draw(logits, {.temperature = 0}, 0); }

double largest_difference(std::span<const float> a, std::span<const float> b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return most;
}

class EveryStorage : public ::testing::TestWithParam<Setting> {};

TEST_P(EveryStorage, PredictsAsWithoutACache) {
  const Setting setting = GetParam();
  Network network(setting);
  // One token; few; more than few; as many as the context holds.
  const std::vector<Tokens> prompts{prompt_of(1, 1), prompt_of(2, 8), prompt_of(3, 19),
                                    prompt_of(4, kContext)};
  Generator generator(network.config, problem_of(network.config), network.stage, {.sequences = 4});
  generator.start(prompts);
  std::vector<Tokens> texts = prompts;
  const double allowed = setting.dtype == "fp32" ? 2e-5 : 0.15;
  for (int step = 0; step < 45; ++step) {  // past the context
    Tokens chosen;
    for (size_t b = 0; b < texts.size(); ++b) {
      const auto logits = generator.logits(static_cast<int64_t>(b));
      const std::vector<float> want = predicted(network, texts[b]);
      EXPECT_LE(largest_difference(logits, want), allowed) << step << " of " << b;
      if (setting.dtype == "fp32") {
        EXPECT_EQ(most_likely(logits), most_likely(want)) << step << " of " << b;
      }
      chosen.push_back(most_likely(want));
      texts[b].push_back(chosen.back());
    }
    generator.append(chosen);
  }
  const std::span<const int32_t> last = generator.tokens(2);
  EXPECT_EQ(Tokens(last.begin(), last.end()), texts[2]);
}

TEST_P(EveryStorage, ASequenceDoesNotDependOnItsBatch) {
  const Setting setting = GetParam();
  Network together(setting);
  Network apart(setting);
  std::vector<Tokens> prompts;
  for (uint64_t b = 0; b < 11; ++b) {  // more than are multiplied at a time
    prompts.push_back(prompt_of(b, 1 + 3 * b));
  }
  Generator all(together.config, problem_of(together.config), together.stage, {.sequences = 11});
  all.start(prompts);
  Generator one(apart.config, problem_of(apart.config), apart.stage, {.sequences = 1});
  std::vector<std::vector<float>> logits(prompts.size());
  for (int step = 0; step < 12; ++step) {
    Tokens chosen;
    for (size_t b = 0; b < prompts.size(); ++b) {
      const auto now = all.logits(static_cast<int64_t>(b));
      logits[b].insert(logits[b].end(), now.begin(), now.end());
      chosen.push_back(b == 4 && step > 5 ? Generator::kEnded : most_likely(now));
    }
    all.append(chosen);
  }
  for (const size_t b : {0, 5, 10}) {
    one.start(std::span(prompts).subspan(b, 1));
    std::vector<float> alone;
    for (int step = 0; step < 12; ++step) {
      const auto now = one.logits(0);
      alone.insert(alone.end(), now.begin(), now.end());
      one.append(Tokens{most_likely(now)});
    }
    EXPECT_EQ(alone, logits[b]) << b;
  }
}

/// Memory for fewer tokens changes nothing.
TEST_P(EveryStorage, FewerTokensThanTheContext) {
  Network network(GetParam());
  const std::vector<Tokens> prompts{prompt_of(1, 5), prompt_of(2, 9)};
  const auto logits = [&](int64_t tokens) {
    Generator generator(network.config, problem_of(network.config), network.stage,
                        {.sequences = 2, .tokens = tokens});
    EXPECT_EQ(generator.context(), tokens == 16 ? 16 : kContext);
    generator.start(prompts);
    std::vector<float> all;
    for (int step = 0; step < 7; ++step) {
      Tokens chosen;
      for (const int64_t b : {0, 1}) {
        const auto now = generator.logits(b);
        all.insert(all.end(), now.begin(), now.end());
        chosen.push_back(most_likely(now));
      }
      generator.append(chosen);
    }
    return all;
  };
  const std::vector<float> wanted = logits(0);
  EXPECT_EQ(logits(16), wanted);
  EXPECT_EQ(logits(kContext + 5), wanted);
}

std::string name_of(const ::testing::TestParamInfo<Setting>& about) {
  const Setting& setting = about.param;
  return fmt::format("{}_{}{}{}", setting.storage.empty() ? "full" : setting.storage, setting.dtype,
                     setting.family.empty() ? "" : "_" + setting.family,
                     setting.window > 0 ? "_window" : "");
}

INSTANTIATE_TEST_SUITE_P(Gpt, EveryStorage,
                         ::testing::Values(Setting{.storage = ""}, Setting{.storage = "dense"},
                                           Setting{.storage = "expanded"},
                                           Setting{.storage = "sparse"},
                                           Setting{.storage = "block"}, Setting{.storage = "auto"},
                                           Setting{.storage = "", .dtype = "bf16"},
                                           Setting{.storage = "sparse", .dtype = "bf16"},
                                           Setting{.storage = "sparse", .dtype = "fp16"}),
                         name_of);

INSTANTIATE_TEST_SUITE_P(
    Decoders, EveryStorage,
    ::testing::Values(
        Setting{.storage = "", .family = "gpt2"}, Setting{.storage = "sparse", .family = "llama"},
        Setting{.storage = "", .dtype = "bf16", .family = "llama"},
        Setting{.storage = "", .family = "qwen3"}, Setting{.storage = "sparse", .family = "neox"},
        Setting{.storage = "", .family = "gemma"}, Setting{.storage = "", .family = "opt"},
        Setting{.storage = "", .family = "mistral", .window = 11},
        Setting{.storage = "sparse", .family = "gemma3", .window = 11}),
    name_of);

/// Weights stay compressed: with a sparse storage nothing as large as a dense weight is allocated
/// while tokens are read one by one.
TEST(Generation, HoldsNoDenseWeight) {
  Network network({.storage = "sparse"});
  Generator generator(network.config, problem_of(network.config), network.stage, {.sequences = 1});
  generator.start(std::vector<Tokens>{prompt_of(1, 3)});
  for (int step = 0; step < 3; ++step) {
    generator.append(Tokens{1});
  }
  const sparse::StateParts parts = network.stage.store().parts();
  EXPECT_EQ(parts.copies, 0U);
  EXPECT_LE(network.arena.use(Memory::scratch).now, 60'000U);
}

/// Products of a prompt do not repeat.
TEST(Generation, KeepsFormsOfProductsWithFewRowsAlone) {
  Network network({.storage = "tiles"});
  for (const sparse::Parameter& parameter : network.stage.store().parameters()) {
    EXPECT_FALSE(parameter.storage.keeps_forms) << parameter.spec.name;
    EXPECT_EQ(parameter.tiles != nullptr, !parameter.full()) << parameter.spec.name;
  }
}

TEST(Generation, HalfFullWeightsGetADenseCopy) {
  Network network({.storage = "auto"});
  sparse::Store& store = network.stage.store();
  std::vector<sparse::Mask> masks = store.masks();
  size_t first = 0;
  while (!store.parameters()[first].spec.prunable) {
    ++first;
  }
  for (size_t p = first; p < masks.size(); ++p) {
    for (int64_t i = 0; store.parameters()[p].spec.prunable && i < masks[p].size(); ++i) {
      masks[p].set(i, i % (p == first ? 2 : 4) == 0);
    }
  }
  store.set_masks(masks);
  choose_generation_storages(network.config, store);
  for (size_t p = 0; p < masks.size(); ++p) {
    const sparse::Parameter& parameter = store.parameters()[p];
    if (parameter.spec.prunable) {
      EXPECT_EQ(parameter.storage.name, p == first ? "dense" : "sparse") << parameter.spec.name;
      EXPECT_EQ(static_cast<bool>(parameter.dense), p == first);
    }
  }
}

TEST(Generation, RefusesBadPrompts) {
  Network network({.storage = ""});
  Generator generator(network.config, problem_of(network.config), network.stage, {.sequences = 2});
  const auto start = [&](const Tokens& second) {
    return [&generator, second] { generator.start(std::vector<Tokens>{{1}, second}); };
  };
  EXPECT_THAT(start({}), ThrowsMessage<Failure>(HasSubstr("prompt 2 has no tokens")));
  EXPECT_THAT(start(prompt_of(1, kContext + 1)),
              ThrowsMessage<Failure>(HasSubstr("41 tokens, more than the context of 40")));
  EXPECT_THAT(start({3, kVocabulary}), ThrowsMessage<Failure>(HasSubstr("token 61")));
  EXPECT_THAT(start({-1}), ThrowsMessage<Failure>(HasSubstr("token -1")));
}

TEST(Draw, FollowsTheProbabilities) {
  std::vector<float> logits;
  for (const double p : {0.1, 0.4, 0.2, 0.3}) {
    logits.push_back(static_cast<float>(std::log(p)));
  }
  const auto counts = [&](const Sampling& how) {
    std::vector<double> shares(logits.size(), 0.0);
    for (int i = 0; i < 1000; ++i) {
      shares[static_cast<size_t>(draw(logits, how, (i + 0.5) / 1000))] += 0.001;
    }
    return shares;
  };
  using ::testing::DoubleNear;
  const auto near = [](double x) { return DoubleNear(x, 0.002); };
  EXPECT_THAT(counts({.temperature = 1}), ElementsAre(near(0.1), near(0.4), near(0.2), near(0.3)));
  EXPECT_THAT(counts({.temperature = 0}), ElementsAre(near(0), near(1), near(0), near(0)));
  EXPECT_THAT(counts({.temperature = 0.5}),
              ElementsAre(near(1 / 30.0), near(16 / 30.0), near(4 / 30.0), near(9 / 30.0)));
  EXPECT_THAT(counts({.temperature = 1, .top_k = 2}),
              ElementsAre(near(0), near(4 / 7.0), near(0), near(3 / 7.0)));
  // 0.4 + 0.3 reaches 0.7 (up to rounding), 0.4 alone reaches 0.35.
  EXPECT_THAT(counts({.temperature = 1, .top_p = 0.69}),
              ElementsAre(near(0), near(4 / 7.0), near(0), near(3 / 7.0)));
  EXPECT_THAT(counts({.temperature = 1, .top_p = 0.35}),
              ElementsAre(near(0), near(1), near(0), near(0)));
  EXPECT_THAT(counts({.temperature = 1, .top_p = 0}),
              ElementsAre(near(0), near(1), near(0), near(0)));
  EXPECT_THAT(counts({.temperature = 1, .top_k = 3, .top_p = 0.5}),
              ElementsAre(near(0), near(4 / 7.0), near(0), near(3 / 7.0)));
}

TEST(Draw, TopPOfManyTokensIsTheShortestPrefix) {
  std::vector<float> logits;
  for (uint64_t i = 0; i < 5000; ++i) {
    logits.push_back(static_cast<float>(mix(7, i) % 10007) / 5000.0F);
  }
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](int32_t t) { return logits[static_cast<size_t>(t)]; });
  double total = 0;
  for (const float x : logits) {
    total += std::exp(static_cast<double>(x));
  }
  std::vector<int32_t> nucleus;
  for (double sum = 0; sum < 0.6 * total; nucleus.push_back(order[nucleus.size()])) {
    sum += std::exp(static_cast<double>(logits[static_cast<size_t>(order[nucleus.size()])]));
  }
  const Sampling how{.temperature = 1, .top_p = 0.6};
  EXPECT_EQ(draw(logits, how, 0), nucleus.front());
  EXPECT_EQ(draw(logits, how, 1 - 0x1p-53), nucleus.back());
}

TEST(Draw, RandomNumbersBelongToThePrompt) {
  const std::vector<int32_t> a{1, 2, 3};
  const std::vector<int32_t> b{1, 2, 4};
  const SequenceRandom first(5, a, 0);
  EXPECT_EQ(first.uniform(3), SequenceRandom(5, a, 0).uniform(3));
  EXPECT_NE(first.uniform(3), first.uniform(4));
  EXPECT_NE(first.uniform(3), SequenceRandom(5, b, 0).uniform(3));
  EXPECT_NE(first.uniform(3), SequenceRandom(5, a, 1).uniform(3));
  EXPECT_NE(first.uniform(3), SequenceRandom(6, a, 0).uniform(3));
}

TEST(GrowingText, StopsAcrossPieces) {
  GrowingText text({"STOP", "end."});
  EXPECT_FALSE(text.add("one S"));
  EXPECT_EQ(text.take(), "one ");
  EXPECT_FALSE(text.add("TO"));
  EXPECT_EQ(text.take(), "");
  EXPECT_FALSE(text.add("W en"));
  EXPECT_EQ(text.take(), "STOW ");
  EXPECT_TRUE(text.add("d. STOP"));
  EXPECT_EQ(text.take(), "");
  EXPECT_EQ(text.text(), "one STOW ");
}

TEST(GrowingText, GivesOutWholeCharacters) {
  GrowingText text({});
  text.add("a\xc3");
  EXPECT_EQ(text.take(), "a");
  text.add("\xa9\xf0\x9f\x98");
  EXPECT_EQ(text.take(), "\xc3\xa9");
  text.add("\x80");
  EXPECT_EQ(text.take(), "\xf0\x9f\x98\x80");
  text.add("\xe2\x82");
  EXPECT_EQ(text.take(), "");
  EXPECT_EQ(text.take(true), "\xe2\x82");
  text.add("\x80\x80\x80\x80");  // no character: not held back
  EXPECT_EQ(text.take(), "\x80\x80\x80\x80");
}

TEST(GrowingText, TheEarliestStopCounts) {
  GrowingText text({"cd", "b"});
  EXPECT_TRUE(text.add("abcd"));
  EXPECT_EQ(text.take(), "a");
}

TEST(SlidingWindows, PredictEachTokenButTheFirstOnce) {
  EXPECT_THAT(sliding_windows(10, 4, 4),
              ElementsAre(SlidingWindow{0, 4, 1}, SlidingWindow{4, 8, 5}, SlidingWindow{8, 10, 9}));
  EXPECT_THAT(sliding_windows(10, 6, 2),
              ElementsAre(SlidingWindow{0, 6, 1}, SlidingWindow{2, 8, 6}, SlidingWindow{4, 10, 8}));
  EXPECT_THAT(sliding_windows(2, 4, 1), ElementsAre(SlidingWindow{0, 2, 1}));
  EXPECT_THAT(sliding_windows(9, 4, 4),  // the last window would predict nothing
              ElementsAre(SlidingWindow{0, 4, 1}, SlidingWindow{4, 8, 5}));
}

/// Against -ln softmax in double of predictions without windows' machinery.
TEST(TextLoss, IsTheMeanOverPredictedTokens) {
  Network network({.storage = "", .generation = false});
  const Tokens text = prompt_of(9, 100);
  const ReadTokens read = [&](int64_t first, std::span<int32_t> out) {
    std::copy_n(text.begin() + first, out.size(), out.begin());
  };
  for (const int64_t stride : {40, 13, 1}) {
    const auto windows = sliding_windows(100, kContext, stride);
    const TextLoss got = text_loss(network.stage, 3, windows, read);
    double want = 0;
    int64_t predictions = 0;
    for (const SlidingWindow& window : windows) {
      for (int64_t token = window.scored; token < window.end; ++token) {
        const auto logits =
            predicted(network, std::span(text).subspan(static_cast<size_t>(window.begin),
                                                       static_cast<size_t>(token - window.begin)));
        double sum = 0;
        for (const float x : logits) {
          sum += std::exp(static_cast<double>(x));
        }
        const auto id = static_cast<size_t>(text[static_cast<size_t>(token)]);
        want += std::log(sum) - static_cast<double>(logits[id]);
        ++predictions;
      }
    }
    EXPECT_EQ(got.predictions, predictions);
    EXPECT_NEAR(got.sum, want, 1e-5 * want);
  }
  const ReadTokens unknown = [](int64_t, std::span<int32_t> out) {
    std::ranges::fill(out, int32_t{kVocabulary});
  };
  EXPECT_THAT([&] { text_loss(network.stage, 3, sliding_windows(9, kContext, 4), unknown); },
              ThrowsMessage<Failure>(HasSubstr("token 0 of the text is 61")));
}

}  // namespace
}  // namespace espalier::train::generation_test
