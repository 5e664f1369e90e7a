#include "io/tokenizer/decoder.h"

#include <charconv>
#include <optional>

#include "io/tokenizer/bpe.h"
#include "io/tokenizer/utf8.h"

namespace espalier::io {
namespace {

using Tokens = std::vector<std::string>;

std::string joined(const Tokens& tokens, std::string_view between) {
  std::string out;
  for (size_t i = 0; i < tokens.size(); ++i) {
    out += i == 0 ? std::string_view() : between;
    out += tokens[i];
  }
  return out;
}

/// The value of "<0x0A>".
std::optional<char> fallback_byte(std::string_view token) {
  unsigned char byte = 0;
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) {
    return std::nullopt;
  }
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  return error == std::errc() && end == token.data() + 5 ? std::optional(static_cast<char>(byte))
                                                         : std::nullopt;
}

void decode_byte_level(Tokens& tokens) {
  std::string all;
  std::string bytes;
  for (const std::string& token : tokens) {
    all += bytes_of_characters(token, bytes) ? bytes : token;
  }
  std::string repaired;
  tokens = {std::string(valid_utf8(all, repaired))};
}

/// Bytes in a row become text if they are valid UTF-8, else one U+FFFD each.
void decode_byte_fallback(Tokens& tokens) {
  Tokens out;
  std::string bytes;
  const auto flush = [&] {
    std::string repaired;
    if (valid_utf8(bytes, repaired).data() == bytes.data()) {
      out.push_back(bytes);
    } else {
      out.insert(out.end(), bytes.size(), "\xef\xbf\xbd");
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const std::optional<char> byte = fallback_byte(token)) {
      bytes += *byte;
      continue;
    }
    if (!bytes.empty()) {
      flush();
    }
    out.push_back(std::move(token));
  }
  if (!bytes.empty()) {
    flush();
  }
  tokens = std::move(out);
}

void decode_replace(Tokens& tokens, const Pattern& pattern, const std::string& content,
                    PatternMemory& memory) {
  for (std::string& token : tokens) {
    if (std::string out; pattern.replace_all(token, content, memory, out)) {
      token = std::move(out);
    }
  }
}

void decode_strip(Tokens& tokens, const std::string& character, size_t start, size_t stop) {
  for (std::string& token : tokens) {
    std::string_view rest = token;
    for (size_t i = 0; i < start && rest.starts_with(character); ++i) {
      rest.remove_prefix(character.size());
    }
    for (size_t i = 0; i < stop && rest.ends_with(character); ++i) {
      rest.remove_suffix(character.size());
    }
    token = std::string(rest);
  }
}

/// The prefix of the first token is none of the text; its other marks go, too, as in `tokenizers`.
void decode_metaspace(Tokens& tokens, const std::string& character, bool prefixed,
                      PatternMemory& memory) {
  const Pattern mark = Pattern::literal(character);
  Tokens first;
  if (prefixed && !tokens.empty()) {
    first = {std::move(tokens[0])};
    tokens.erase(tokens.begin());
    decode_replace(first, mark, "", memory);
  }
  decode_replace(tokens, mark, " ", memory);
  tokens.insert(tokens.begin(), first.begin(), first.end());
}

}  // namespace

TokenDecoder TokenDecoder::read(const JsonField& field) {
  TokenDecoder out;
  if (!field.is_null()) {
    out.joins_with_spaces_ = false;
    out.add(field);
  }
  return out;
}

void TokenDecoder::add(const JsonField& field) {
  const std::string& type = field.type();
  Step step;
  if (type == "Sequence") {
    for (const JsonField& element : field.at("decoders").elements()) {
      add(element);
    }
    return;
  }
  if (type == "ByteLevel") {
    step.kind = Kind::byte_level;
  } else if (type == "ByteFallback") {
    step.kind = Kind::byte_fallback;
  } else if (type == "Fuse") {
    step.kind = Kind::fuse;
  } else if (type == "Replace") {
    step.kind = Kind::replace;
    step.pattern.push_back(Pattern::read(field.at("pattern")));
    step.content = field.at("content").text();
  } else if (type == "Strip") {
    step.kind = Kind::strip;
    step.content = field.at("content").text();
    step.start = static_cast<size_t>(field.at("start").number(int64_t{1} << 31));
    step.stop = static_cast<size_t>(field.at("stop").number(int64_t{1} << 31));
  } else if (type == "Metaspace") {
    step.kind = Kind::metaspace;
    step.content = field.at("replacement").text();
    const JsonField scheme = field.maybe("prepend_scheme");
    step.prefixed =
        scheme.is_null() ? field.maybe("add_prefix_space").flag(true) : scheme.text() != "never";
  } else {
    field.refuse_type("ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, Sequence");
  }
  const bool of_character = step.kind == Kind::strip || step.kind == Kind::metaspace;
  if (of_character &&
      (step.content.empty() || step.content.size() != utf8_bytes(step.content[0]))) {
    field.at(type == "Strip" ? "content" : "replacement").refuse("is not one character");
  }
  steps_.push_back(std::move(step));
}

void TokenDecoder::run(const Step& step, Tokens& tokens, PatternMemory& memory) {
  switch (step.kind) {
    case Kind::byte_level:
      return decode_byte_level(tokens);
    case Kind::byte_fallback:
      return decode_byte_fallback(tokens);
    case Kind::fuse:
      tokens = {joined(tokens, "")};
      return;
    case Kind::replace:
      return decode_replace(tokens, step.pattern[0], step.content, memory);
    case Kind::strip:
      return decode_strip(tokens, step.content, step.start, step.stop);
    case Kind::metaspace:
      return decode_metaspace(tokens, step.content, step.prefixed, memory);
  }
}

std::string TokenDecoder::decode(Tokens tokens) const {
  if (joins_with_spaces_) {
    return joined(tokens, " ");
  }
  PatternMemory memory;
  for (const Step& step : steps_) {
    run(step, tokens, memory);
  }
  return joined(tokens, "");
}

}  // namespace espalier::io
