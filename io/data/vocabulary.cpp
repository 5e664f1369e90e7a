#include <algorithm>
#include <cctype>
#include <charconv>

#include "io/data/tokens.h"
#include "src/core/error.h"

namespace espalier::io {
namespace {

std::string shown(unsigned char byte) {
  return std::isprint(byte) != 0 ? fmt::format("'{}' (0x{:02x})", static_cast<char>(byte), byte)
                                 : fmt::format("0x{:02x}", byte);
}

bool byte_less(char a, char b) {
  return static_cast<unsigned char>(a) < static_cast<unsigned char>(b);
}

}  // namespace

Vocabulary::Vocabulary(std::string bytes) : bytes_(std::move(bytes)) {
  std::ranges::sort(bytes_, byte_less);
  bytes_.erase(std::unique(bytes_.begin(), bytes_.end()), bytes_.end());
}

Vocabulary Vocabulary::all_bytes() {
  std::string bytes;
  for (int b = 0; b < 256; ++b) {
    bytes += static_cast<char>(b);
  }
  return Vocabulary(bytes);
}

std::string Vocabulary::text() const {
  std::string out;
  for (const char byte : bytes_) {
    out += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return out;
}

Vocabulary Vocabulary::from_text(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    unsigned char byte = 0;
    std::from_chars(text.data() + i, text.data() + i + 2, byte, 16);
    bytes += static_cast<char>(byte);
  }
  Vocabulary out(bytes);
  check(out.text() == text, "\"{}\" is no vocabulary: expected two hex digits a byte, ascending",
        text);
  return out;
}

int32_t Vocabulary::token(unsigned char byte) const {
  const auto at = std::ranges::lower_bound(bytes_, static_cast<char>(byte), byte_less);
  const bool found = at != bytes_.end() && static_cast<unsigned char>(*at) == byte;
  return found ? static_cast<int32_t>(at - bytes_.begin()) : -1;
}

std::vector<int32_t> Vocabulary::encode(std::string_view text) const {
  std::vector<int32_t> out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    out.push_back(token(byte));
    check(out.back() >= 0, "character {} at byte {} of the text is not in the vocabulary of {}",
          shown(byte), i, size());
  }
  return out;
}

std::string Vocabulary::decode(std::span<const int32_t> tokens) const {
  std::string out;
  for (const int32_t token : tokens) {
    require(token >= 0 && token < size(), "a token lies in the vocabulary", token, size());
    out += bytes_[static_cast<size_t>(token)];
  }
  return out;
}

}  // namespace espalier::io
