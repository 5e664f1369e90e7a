#pragma once
// Tokenizers that subcommands read: a tokenizer.json, a tokenizer.model (SentencePiece), or a
// checkpoint that holds one.
#include <string>

#include "io/tokenizer/tokenizer.h"

namespace espalier::cli {

/// Throws Failure if the file is missing, holds no tokenizer, or one that is not supported.
io::Tokenizer open_tokenizer(const std::string& path);

}  // namespace espalier::cli
