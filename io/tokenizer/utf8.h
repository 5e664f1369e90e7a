#pragma once
// UTF-8 as tokenizers see it: repaired, and taken apart into code points.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace espalier::io {

/// `text`, or, where it is no valid UTF-8, `buffer` with U+FFFD in place of each maximal invalid
/// part (the Unicode standard, section 3.9), as Hugging Face's `tokenizers` gets it from Python.
std::string_view valid_utf8(std::string_view text, std::string& buffer);
/// The bytes at the end of `text` that more bytes may complete to a code point: 0 to 3.
size_t incomplete_utf8(std::string_view text);

/// Bytes of the code point that begins at `lead`, in valid UTF-8.
inline size_t utf8_bytes(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}
inline bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0U) == 0x80;
}

/// The code point at `at` of valid UTF-8.
char32_t code_point(std::string_view text, size_t at);
void append_utf8(std::string& text, char32_t point);

/// Bytes of white space (Unicode's White_Space) at the beginning, and at the end.
size_t leading_white_space(std::string_view text);
size_t trailing_white_space(std::string_view text);

}  // namespace espalier::io
