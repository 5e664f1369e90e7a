#pragma once
// Hugging Face's tokenizer.json: normalizer, pre-tokenizer, byte-pair encoding, added tokens.
#include <memory>
#include <string>

#include "io/tokenizer/tokenizer_model.h"

namespace espalier::io {

/// Throws Failure, which begins with `name`, unless `json` is a tokenizer.json that is supported.
std::shared_ptr<const TokenizerModel> read_json_tokenizer(std::string json,
                                                          const std::string& name);

}  // namespace espalier::io
