#pragma once
// JSON of files that may come from anywhere.
#include <nlohmann/json.hpp>
#include <string_view>

namespace espalier::io {

/// Levels of objects and lists in a JSON text; those of strings do not count.
int64_t json_levels(std::string_view text);

/// The value of `text`; discarded (`is_discarded`) unless it is JSON of at most 64 levels: copies,
/// comparisons and output of nlohmann's JSON take a stack frame a level.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text) {
  constexpr int64_t kMaxLevels = 64;
  return json_levels(text) > kMaxLevels ? Json(Json::value_t::discarded)
                                        : Json::parse(text, nullptr, false);
}

}  // namespace espalier::io
