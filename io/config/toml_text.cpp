#include "io/config/toml_text.h"

#include <algorithm>

namespace espalier::io {
namespace {

/// The place behind the string that begins at `at` with a quote, on one line or on several.
size_t end_of_string(std::string_view text, size_t at) {
  const char quote = text[at];
  const size_t length = text.substr(at).starts_with(quote == '"' ? R"(""")" : "'''") ? 3 : 1;
  size_t closing = 0;  // quotes in a row
  for (at += length; at < text.size(); ++at) {
    const char c = text[at];
    if (length == 1 && (c == quote || c == '\n')) {
      return at + 1;
    }
    if (closing >= 3 && c != quote) {  // up to two quotes before the closing three are the text's
      return at;
    }
    closing = c == quote ? closing + 1 : 0;
    at += c == '\\' && quote == '"' ? 1 : 0;
  }
  return text.size();
}

}  // namespace

int64_t longest_key(std::string_view toml) {
  int64_t parts = 1;
  int64_t most = 1;
  for (size_t at = 0; at < toml.size();) {
    const char c = toml[at];
    if (c == '"' || c == '\'') {
      at = end_of_string(toml, at);
      continue;
    }
    if (c == '#') {
      at = std::min(toml.find('\n', at), toml.size());
      continue;
    }
    if (c == '.') {
      most = std::max(most, ++parts);
    } else if (std::string_view("=,[]{}\n").find(c) != std::string_view::npos) {
      parts = 1;
    }
    ++at;
  }
  return most;
}

}  // namespace espalier::io
