#pragma once
// Tokens of a text that comes in parts.
#include <cstdint>
#include <string_view>
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

}  // namespace espalier::io
