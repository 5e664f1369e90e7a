#pragma once
// The tokenizer of a model to import: whether its ids fit the network, and where transformers would
// encode texts otherwise, because it also reads the small files beside the tokenizer.
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "src/hub/config_json.h"

namespace espalier::hub {

/// The number of tokens of the tokenizer in `texts` (read_texts), which is of `folder`; 0: there is
/// none. Throws Failure if it cannot be read, or has ids beyond the `rows` of the embedding. Adds
/// to `notes` what transformers does and this tokenizer does not, by the files beside it or by the
/// class that `model` has there: tokens, bos and eos, a space before the text.
int64_t check_tokenizer(const std::map<std::string, std::string>& texts,
                        const std::filesystem::path& folder, const ConfigJson& model, int64_t rows,
                        std::vector<std::string>& notes);

}  // namespace espalier::hub
