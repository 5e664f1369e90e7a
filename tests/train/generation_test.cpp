// Generation with a key-value cache: the same predictions as without one, for every storage, type
// and family of decoders; a sequence's bits do not depend on its batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "src/train/generation/generator.h"
#include "src/train/generation/sampler.h"
#include "tests/train/generation_network.h"

namespace espalier::train::generation_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

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

}  // namespace
}  // namespace espalier::train::generation_test
