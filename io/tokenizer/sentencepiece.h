#pragma once
// SentencePiece's tokenizer.model by its own library (Kudo and Richardson, EMNLP 2018).
//
// Encoding is split into parts at places where a cut changes no token: before a space, if no piece
// holds it with the character before it, and likewise after a line end. The library encodes the
// parts; those of BPE are cached.
#include <memory>
#include <string>

#include "io/tokenizer/sentencepiece_file.h"
#include "io/tokenizer/tokenizer_model.h"

namespace espalier::io {

/// `config`: tokenizer_config.json, or empty. Throws Failure, which begins with `name`, if the
/// model is damaged or not supported.
std::shared_ptr<const TokenizerModel> read_sentencepiece(std::string bytes, const std::string& name,
                                                         const std::string& config);

}  // namespace espalier::io
