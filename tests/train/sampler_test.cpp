// Draws by temperature, top k and top p; stop strings across tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "src/core/rng.h"
#include "src/train/generation/sampler.h"

namespace espalier::train::sampler_test {
namespace {

using ::testing::ElementsAre;

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

}  // namespace
}  // namespace espalier::train::sampler_test
