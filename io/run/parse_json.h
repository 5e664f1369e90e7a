#pragma once
// JSON of files that may come from anywhere.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace espalier::io {

/// Levels of objects and lists in a JSON text; those of strings do not count.
int64_t json_levels(std::string_view text);

/// Copies, comparisons and output of nlohmann's JSON take a stack frame a level.
inline constexpr int64_t kMaxJsonLevels = 64;

/// The value of `text`; discarded (`is_discarded`) unless it is JSON of at most kMaxJsonLevels.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text) {
  return json_levels(text) > kMaxJsonLevels ? Json(Json::value_t::discarded)
                                            : Json::parse(text, nullptr, false);
}

/// Why parse_json discards `text`, or finds no object: "line 3, column 7: invalid literal; last
/// read: 'NaN'", "it has type array".
std::string json_fault(std::string_view text);

}  // namespace espalier::io
