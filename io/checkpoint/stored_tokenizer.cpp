#include "io/checkpoint/stored_tokenizer.h"

#include "src/core/error.h"

namespace espalier::io {
namespace {

constexpr std::string_view kBase64Digits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const std::string_view group = bytes.substr(at, 3);
    uint32_t bits = 0;
    for (size_t i = 0; i < 3; ++i) {
      bits = bits << 8U | (i < group.size() ? static_cast<unsigned char>(group[i]) : 0U);
    }
    for (size_t i = 0; i < 4; ++i) {
      text += i <= group.size() ? kBase64Digits[bits >> (18 - 6 * i) & 0x3fU] : '=';
    }
  }
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  static const auto values = [] {
    std::array<int8_t, 256> out{};
    out.fill(-1);
    for (size_t i = 0; i < kBase64Digits.size(); ++i) {
      out[static_cast<unsigned char>(kBase64Digits[i])] = static_cast<int8_t>(i);
    }
    return out;
  }();
  if (text.size() % 4 != 0) {
    return std::nullopt;
  }
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (size_t at = 0; at < text.size(); at += 4) {
    const size_t digits = at + 4 == text.size() ? 4 - padding : 4;
    uint32_t bits = 0;
    for (size_t i = 0; i < 4; ++i) {
      const int8_t value =
          i < digits ? values[static_cast<unsigned char>(text[at + i])] : int8_t{0};
      if (value < 0) {
        return std::nullopt;
      }
      bits = bits << 6U | static_cast<uint32_t>(value);
    }
    for (size_t i = 0; i + 1 < digits; ++i) {
      bytes += static_cast<char>(bits >> (16 - 8 * i) & 0xffU);
    }
  }
  return bytes;
}

void store_tokenizer(const StoredTokenizer& tokenizer, ModelTexts& texts) {
  texts[std::string(tokenizer.file.text)] =
      tokenizer.file.is_binary ? to_base64(tokenizer.bytes) : tokenizer.bytes;
}

void remove_tokenizer(ModelTexts& texts) {
  for (const TokenizerFile& file : kTokenizerFiles) {
    texts.erase(std::string(file.text));
  }
}

std::optional<StoredTokenizer> stored_tokenizer(const ModelTexts& texts, const std::string& file) {
  for (const TokenizerFile& each : kTokenizerFiles) {
    const auto found = texts.find(std::string(each.text));
    if (found == texts.end()) {
      continue;
    }
    auto bytes = each.is_binary ? from_base64(found->second) : found->second;
    check(bytes.has_value(), "{}: its text \"{}\" is damaged; import the model again", file,
          each.text);
    return StoredTokenizer{.file = each, .bytes = *std::move(bytes)};
  }
  return std::nullopt;
}

std::optional<Tokenizer> tokenizer_of(const ModelTexts& texts, const std::string& file) {
  std::optional<StoredTokenizer> stored = stored_tokenizer(texts, file);
  if (!stored) {
    return std::nullopt;
  }
  const auto config = texts.find(std::string(kHubTexts) + std::string(kTokenizerConfigFile));
  return Tokenizer::from_text(std::move(stored->bytes),
                              fmt::format("{} ({})", file, stored->file.text),
                              config == texts.end() ? std::string() : config->second);
}

}  // namespace espalier::io
