#include "io/run/parse_json.h"

#include <fmt/format.h>

#include <algorithm>

namespace espalier::io {

int64_t json_levels(std::string_view text) {
  int64_t level = 0;
  int64_t most = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      i += c == '\\' ? 1 : 0;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      most = std::max(most, ++level);
    } else if (c == ']' || c == '}') {
      --level;
    }
  }
  return most;
}

std::string json_fault(std::string_view text) {
  if (text.empty()) {
    return "it is empty";
  }
  if (json_levels(text) > kMaxJsonLevels) {
    return fmt::format("it has more than {} levels", kMaxJsonLevels);
  }
  try {
    return fmt::format("it has type {}", nlohmann::json::parse(text).type_name());
  } catch (const nlohmann::json::exception& error) {  // also a number beyond double
    // The library's message is "[json.exception.parse_error.101] parse error at line 1, column 4:
    // syntax error while parsing value - invalid literal; last read: '…'". The text that was read
    // last may be long.
    constexpr size_t kMost = 160;
    std::string fault = error.what();
    const size_t place = fault.find(" at line ");
    const size_t end_of_kind = fault.find("] ");  // "[json.exception.out_of_range.406] number …"
    fault = place != std::string::npos         ? fault.substr(place + sizeof(" at ") - 1)
            : end_of_kind != std::string::npos ? fault.substr(end_of_kind + 2)
                                               : fault;
    std::ranges::replace_if(
        fault, [](char c) { return c < ' ' || c > '~'; }, '?');
    return fault.size() <= kMost ? fault : fault.substr(0, kMost) + "...";
  }
}

}  // namespace espalier::io
