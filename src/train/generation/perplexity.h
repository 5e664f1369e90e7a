#pragma once
// Perplexity of a text by sliding windows, as the documentation of transformers computes it
// ("Perplexity of fixed-length models"): windows of `context` tokens that begin `stride` tokens
// apart. With stride < context every token but the first is predicted once, from the tokens before
// it in the first window that holds it. With stride = context windows do not overlap, and the first
// token of each is not predicted.
//
//   loss = mean of -ln p(token) over predicted tokens;  perplexity = exp(loss)
//
// Every predicted token has the same weight. (The documentation's code weights the mean of a window
// by one token less than it predicts, in every window but the first.)
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "src/train/stage/stage.h"

namespace espalier::train {

/// Tokens [begin, end) of a text, whose tokens from `scored` on are predicted.
struct SlidingWindow {
  int64_t begin = 0, end = 0, scored = 0;
  bool operator==(const SlidingWindow&) const = default;
};

/// In order, without windows that predict nothing. `tokens` >= 2; 1 <= stride <= context, context
/// >= 2.
std::vector<SlidingWindow> sliding_windows(int64_t tokens, int64_t context, int64_t stride);

struct TextLoss {
  double sum = 0;  ///< of -ln p, nats
  int64_t predictions = 0;
};

/// Reads tokens [first, first + out.size()) of a text.
using ReadTokens = std::function<void(int64_t first, std::span<int32_t> out)>;

/// `done` of `total` windows are read.
using OnWindows = std::function<void(int64_t done, int64_t total)>;

/// The losses of a text under a stage of the whole network, which takes up to `micro_batch` windows
/// at a time. Throws Failure for a token that the network does not know.
TextLoss text_loss(Stage& stage, int64_t micro_batch, std::span<const SlidingWindow> windows,
                   const ReadTokens& read, const OnWindows& on_windows = {});

}  // namespace espalier::train
