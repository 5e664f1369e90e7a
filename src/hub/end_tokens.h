#pragma once
// The tokens that end a text, of `eos_token_id` in generation_config.json or config.json, as
// transformers' generate() takes them.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace espalier::hub {

/// `texts`: those of a checkpoint (directory.h). generation_config.json counts, then config.json.
/// Empty: neither names a token. Throws Failure, which begins with `place`, for values that are no
/// number and no list of numbers. `notes`: numbers that are no token of `vocabulary`, and are
/// ignored.
std::vector<int32_t> end_tokens(const std::map<std::string, std::string>& texts, int64_t vocabulary,
                                const std::string& place, std::vector<std::string>& notes);

}  // namespace espalier::hub
