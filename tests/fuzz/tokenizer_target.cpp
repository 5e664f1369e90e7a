// A tokenizer.json and a text, separated by a byte 0: loads, encodes at once and in parts, decodes.
#include "io/tokenizer/tokenizer.h"
#include "src/core/error.h"
#include "tests/fuzz/fuzz.h"

namespace espalier::fuzz {
namespace {

void tokenize(Input input) {
  const std::vector<Input> parts = split(input, 0, 2);
  const io::Tokenizer tokenizer = io::Tokenizer::from_text(text_of(parts[0]));
  const std::string text = text_of(parts[1]);
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

const Registration kTarget({"tokenizer", tokenize});

}  // namespace
}  // namespace espalier::fuzz
