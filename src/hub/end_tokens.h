#pragma once
// The tokens that end a text: `eos_token_id` in generation_config.json or config.json, as in
// transformers' generate().
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace espalier::hub {

/// `texts`: those of a checkpoint (directory.h). Reads generation_config.json; if it has no valid
/// id, config.json; empty if neither has one. Numbers and booleans that are no token of
/// `vocabulary` are ignored and reported in `notes`. Throws Failure, which begins with `place`, for
/// other types.
std::vector<int32_t> end_tokens(const std::map<std::string, std::string>& texts, int64_t vocabulary,
                                const std::string& place, std::vector<std::string>& notes);

}  // namespace espalier::hub
