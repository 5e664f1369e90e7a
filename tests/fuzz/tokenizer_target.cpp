// A tokenizer.json and a text, separated by a byte 0.
#include "tests/fuzz/use_tokenizer.h"

namespace espalier::fuzz {
namespace {

void tokenize(Input input) {
  const std::vector<Input> parts = split(input, 0, 2);
  use_tokenizer(io::Tokenizer::from_text(text_of(parts[0])), text_of(parts[1]));
}

const Registration kTarget({"tokenizer", tokenize});

}  // namespace
}  // namespace espalier::fuzz
