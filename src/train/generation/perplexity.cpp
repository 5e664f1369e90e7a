#include "src/train/generation/perplexity.h"

#include <algorithm>

namespace espalier::train {
namespace {

/// Fills row `row` of inputs and targets; tokens behind the window are zeros, which no earlier
/// token attends to.
void fill_window(const SlidingWindow& window, int64_t row, const Tensor& inputs,
                 const Tensor& targets, int64_t classes, const ReadTokens& read) {
  const auto length = static_cast<size_t>(window.end - window.begin);
  const auto width = static_cast<size_t>(inputs.cols());
  const auto in = inputs.span<int32_t>().subspan(static_cast<size_t>(row) * width, width);
  const auto out = targets.span<int32_t>().subspan(static_cast<size_t>(row) * width, width);
  std::ranges::fill(in, 0);
  std::ranges::fill(out, 0);
  read(window.begin, in.first(length));
  for (size_t i = 0; i < length; ++i) {
    check(
        in[i] >= 0 && in[i] < classes,
        "token {} of the text is {}, but the network knows tokens from 0 to {}; use the tokenizer "
        "that it was trained with",
        window.begin + static_cast<int64_t>(i), in[i], classes - 1);
  }
  std::ranges::copy(in.subspan(1, length - 1), out.begin());
}

}  // namespace

std::vector<SlidingWindow> sliding_windows(int64_t tokens, int64_t context, int64_t stride) {
  require(tokens >= 2 && context >= 2 && stride >= 1 && stride <= context,
          "sizes of sliding windows", tokens, context, stride);
  std::vector<SlidingWindow> windows;
  int64_t scored = 1;
  for (int64_t begin = 0; scored < tokens; begin += stride) {
    const int64_t end = std::min(begin + context, tokens);
    const int64_t first = std::max(scored, begin + 1);
    if (first < end) {
      windows.push_back({.begin = begin, .end = end, .scored = first});
    }
    scored = end;
  }
  return windows;
}

TextLoss text_loss(Stage& stage, int64_t micro_batch, std::span<const SlidingWindow> windows,
                   const ReadTokens& read, const OnWindows& on_windows) {
  TextLoss result;
  const auto count = static_cast<int64_t>(windows.size());
  for (int64_t at = 0; at < count; at += micro_batch) {
    const int64_t n = std::min(micro_batch, count - at);
    const auto some = windows.subspan(static_cast<size_t>(at), static_cast<size_t>(n));
    const Tensor inputs = stage.inputs(n);
    const Tensor targets = stage.targets(n).reshaped(inputs.shape);
    for (int64_t i = 0; i < n; ++i) {
      fill_window(some[static_cast<size_t>(i)], i, inputs, targets, stage.problem().classes, read);
    }
    const std::vector<float> losses = stage.row_losses(n);
    for (int64_t i = 0; i < n; ++i) {
      const SlidingWindow& window = some[static_cast<size_t>(i)];
      for (int64_t token = window.scored; token < window.end; ++token) {
        // Row r of a window predicts its token r + 1.
        const int64_t row = i * inputs.cols() + token - window.begin - 1;
        result.sum += static_cast<double>(losses[static_cast<size_t>(row)]);
        ++result.predictions;
      }
    }
    if (on_windows) {
      on_windows(at + n, count);
    }
  }
  return result;
}

}  // namespace espalier::train
