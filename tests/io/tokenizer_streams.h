#pragma once
// Tokens of a text that comes in parts, and of one that threads encode at once.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

#include "io/tokenizer/tokenizer.h"

namespace espalier::io {

/// By a stream that keeps `window` bytes, and gets `part` bytes at a time. `before_end`: tokens
/// given out before the text ended.
inline std::vector<int32_t> streamed(const Tokenizer& tokenizer, std::string_view text,
                                     size_t window, size_t part, size_t* before_end = nullptr) {
  TokenizerStream stream(tokenizer);
  stream.set_window(window);
  std::vector<int32_t> ids;
  for (size_t at = 0; at < text.size(); at += part) {
    stream.add(text.substr(at, part), ids);
  }
  if (before_end != nullptr) {
    *before_end = ids.size();
  }
  stream.finish(ids);
  return ids;
}

/// Streams of any window give the tokens of the whole text; `text_of(pieces)` draws one. A text of
/// `pieces` gives at least the share `early` of its tokens before its end, in `parts` of bytes.
template <class Text>
void expect_streams(const Tokenizer& tokenizer, std::mt19937& random, const Text& text_of,
                    size_t pieces, const std::vector<size_t>& parts, double early) {
  for (int round = 0; round < 200; ++round) {
    const std::string text = text_of(1 + random() % 60);
    ASSERT_EQ(streamed(tokenizer, text, 1 + random() % 40, 1 + random() % 40),
              tokenizer.encode(text, false))
        << text;
  }
  const std::string text = text_of(pieces);
  const std::vector<int32_t> whole = tokenizer.encode(text, false);
  for (const size_t part : parts) {
    size_t before_end = 0;
    EXPECT_TRUE(streamed(tokenizer, text, 1000, part, &before_end) == whole) << part;
    EXPECT_GE(static_cast<double>(before_end), early * static_cast<double>(whole.size())) << part;
  }
}

/// Threads that share a tokenizer get the same tokens.
inline void expect_shared(const Tokenizer& tokenizer, const std::string& text) {
  const std::vector<int32_t> expected = tokenizer.encode(text);
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int round = 0; round < 5; ++round) {
        EXPECT_EQ(tokenizer.encode(text), expected);
        tokenizer.decode(expected);
      }
    });
  }
}

}  // namespace espalier::io
