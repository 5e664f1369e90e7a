#pragma once
// The common part of the fuzz targets of tokenizers: encodes and decodes a text.
#include "io/tokenizer/tokenizer.h"
#include "src/core/error.h"
#include "tests/fuzz/fuzz.h"

namespace espalier::fuzz {

/// Encodes at once and in parts, which must agree, and decodes.
inline void use_tokenizer(const io::Tokenizer& tokenizer, const std::string& text) {
  tokenizer.decode(tokenizer.encode(text));
  const std::vector<int32_t> whole = tokenizer.encode(text, false);
  io::TokenizerStream stream(tokenizer);
  stream.set_window(16);
  std::vector<int32_t> streamed;
  for (size_t at = 0; at < text.size(); at += 5) {
    stream.add(std::string_view(text).substr(at, 5), streamed);
  }
  stream.finish(streamed);
  require(streamed == whole, "a stream gives the tokens of the whole text", whole.size(),
          streamed.size());
}

}  // namespace espalier::fuzz
