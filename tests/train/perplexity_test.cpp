// Perplexity by sliding windows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "src/train/generation/perplexity.h"
#include "tests/train/generation_network.h"

namespace espalier::train::perplexity_test {
namespace {

using namespace generation_test;  // NOLINT(google-build-using-namespace)
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

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
}  // namespace espalier::train::perplexity_test
