// A text of so many bytes as the first byte says, and a tokenizer.model of SentencePiece.
#include "tests/fuzz/use_tokenizer.h"

namespace espalier::fuzz {
namespace {

void tokenize(Input input) {
  Draws draws(input);
  const std::string text = text_of(draws.part(draws.take(1)));
  use_tokenizer(io::Tokenizer::from_text(text_of(draws.rest()), "tokenizer.model"), text);
}

const Registration kTarget({"sentencepiece", tokenize});

}  // namespace
}  // namespace espalier::fuzz
