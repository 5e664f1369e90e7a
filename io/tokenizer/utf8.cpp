#include "io/tokenizer/utf8.h"

#include <cstring>

namespace espalier::io {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

struct Utf8Unit {
  size_t bytes = 0;  ///< of the code point, or of the invalid part
  bool valid = false;
  bool cut_short = false;  ///< invalid only because the text ends
};

/// The first code point, or the maximal part that begins one, of at least one byte.
Utf8Unit utf8_unit(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) {
    return {.bytes = 1, .valid = true};
  }
  if (lead < 0xc2 || lead > 0xf4) {
    return {.bytes = 1};
  }
  const size_t bytes = utf8_bytes(text[0]);
  // The second byte is restricted: no overlong forms, no surrogates, nothing above U+10FFFF.
  const unsigned low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (size_t i = 1; i < bytes; ++i) {
    if (i == text.size()) {
      return {.bytes = i, .cut_short = true};
    }
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < (i == 1 ? low : 0x80) || byte > (i == 1 ? high : 0xbf)) {
      return {.bytes = i};
    }
  }
  return {.bytes = bytes, .valid = true};
}

/// The length of the longest valid beginning.
size_t valid_bytes(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t word = 0;
    if (at + sizeof(word) <= text.size()) {
      std::memcpy(&word, text.data() + at, sizeof(word));
      if ((word & 0x8080808080808080U) == 0) {
        at += sizeof(word);
        continue;
      }
    }
    const Utf8Unit unit = utf8_unit(text.substr(at));
    if (!unit.valid) {
      break;
    }
    at += unit.bytes;
  }
  return at;
}

bool is_white_space(char32_t point) {
  return (point >= 0x9 && point <= 0xd) || point == 0x20 || point == 0x85 || point == 0xa0 ||
         point == 0x1680 || (point >= 0x2000 && point <= 0x200a) || point == 0x2028 ||
         point == 0x2029 || point == 0x202f || point == 0x205f || point == 0x3000;
}

}  // namespace

std::string_view valid_utf8(std::string_view text, std::string& buffer) {
  size_t valid = valid_bytes(text);
  if (valid == text.size()) {
    return text;
  }
  buffer.clear();
  while (!text.empty()) {
    buffer += text.substr(0, valid);
    text.remove_prefix(valid);
    if (!text.empty()) {
      buffer += kReplacement;
      text.remove_prefix(utf8_unit(text).bytes);
    }
    valid = valid_bytes(text);
  }
  return buffer;
}

size_t incomplete_utf8(std::string_view text) {
  size_t back = 1;
  while (back < 4 && back < text.size() && is_continuation(text[text.size() - back])) {
    ++back;
  }
  if (back > text.size()) {
    return 0;
  }
  const Utf8Unit unit = utf8_unit(text.substr(text.size() - back));
  return unit.cut_short && unit.bytes == back ? back : 0;
}

char32_t code_point(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[at + i]));
  };
  switch (utf8_bytes(text[at])) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1fU) << 6 | (byte(1) & 0x3fU);
    case 3:
      return (byte(0) & 0x0fU) << 12 | (byte(1) & 0x3fU) << 6 | (byte(2) & 0x3fU);
    default:
      return (byte(0) & 0x07U) << 18 | (byte(1) & 0x3fU) << 12 | (byte(2) & 0x3fU) << 6 |
             (byte(3) & 0x3fU);
  }
}

void append_utf8(std::string& text, char32_t point) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (point < 0x80) {
    put(point);
  } else if (point < 0x800) {
    put(0xc0U | point >> 6);
    put(0x80U | (point & 0x3fU));
  } else if (point < 0x10000) {
    put(0xe0U | point >> 12);
    put(0x80U | (point >> 6 & 0x3fU));
    put(0x80U | (point & 0x3fU));
  } else {
    put(0xf0U | point >> 18);
    put(0x80U | (point >> 12 & 0x3fU));
    put(0x80U | (point >> 6 & 0x3fU));
    put(0x80U | (point & 0x3fU));
  }
}

size_t leading_white_space(std::string_view text) {
  size_t at = 0;
  while (at < text.size() && is_white_space(code_point(text, at))) {
    at += utf8_bytes(text[at]);
  }
  return at;
}

size_t trailing_white_space(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t start = end - 1;
    while (start > 0 && is_continuation(text[start])) {
      --start;
    }
    if (!is_white_space(code_point(text, start))) {
      break;
    }
    end = start;
  }
  return text.size() - end;
}

}  // namespace espalier::io
