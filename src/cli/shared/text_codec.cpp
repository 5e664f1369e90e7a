#include "src/cli/shared/text_codec.h"
#include "src/cli/shared/paths.h"

#include <sstream>

#include "io/checkpoint/stored_tokenizer.h"
#include "src/core/error.h"

namespace espalier::cli {

std::optional<io::Tokenizer> tokenizer_for(const WeightsFile& file, const std::string& named) {
  std::optional<io::Tokenizer> tokenizer;
  if (!named.empty()) {
    tokenizer = open_tokenizer(named);
  } else if (file.config.data.kind == "tokens") {
    tokenizer = io::tokenizer_of(file.meta.extra, file.path.string());
  }
  check(!tokenizer || tokenizer->vocabulary() <= file.problem.classes,
        "the tokenizer has tokens up to {}, but the network of {} knows {}; use the tokenizer "
        "that it was trained with",
        tokenizer ? tokenizer->vocabulary() - 1 : 0, file.path.string(), file.problem.classes);
  return tokenizer;
}

TextCodec::TextCodec(const WeightsFile& file, const std::string& tokenizer)
    : file_(file.path.string()), classes_(file.problem.classes) {
  const std::string& kind = file.config.data.kind;
  check(kind != "images", "{} classifies images and cannot write text; use a checkpoint of a GPT",
        file_);
  tokenizer_ = tokenizer_for(file, tokenizer);
  if (tokenizer_) {
    return;
  }
  check(kind != "chars" || file.characters.size() > 0,
        "{} does not hold the characters of its vocabulary; repeat `espalier prune` or `espalier "
        "import` with --config CONFIG.toml, where the files of data.train exist",
        file_);
  characters_ = kind == "bytes" ? io::Vocabulary::all_bytes() : file.characters;
}

std::vector<int32_t> TextCodec::encode(const std::string& text, std::string_view option) const {
  return tokenizer_               ? tokenizer_->encode(text)
         : characters_.size() > 0 ? characters_.encode(text)
                                  : numbers(text, option);
}

/// Token numbers, separated by blanks or commas.
std::vector<int32_t> TextCodec::numbers(std::string text, std::string_view option) const {
  std::ranges::replace(text, ',', ' ');
  std::istringstream words(text);
  std::vector<int32_t> tokens;
  for (std::string word; words >> word;) {
    const bool digits = word.size() < 10 && word.find_first_not_of("0123456789") == word.npos;
    const int64_t token = digits ? std::stoll(word) : -1;
    if (token < 0 || token >= classes_) {
      throw Usage(
          fmt::format("{}: \"{}\" is not a token of {}; data of kind \"tokens\" without a "
                      "tokenizer take numbers from 0 to {}",
                      option, word, file_, classes_ - 1));
    }
    tokens.push_back(static_cast<int32_t>(token));
  }
  return tokens;
}

/// Whether later tokens may change `text`, the text of `tokens`. One that ends in U+FFFD may end in
/// a part of a character. In tokenizers with a token for each byte a run of such tokens is one
/// text, and all of it becomes U+FFFD if the run goes on with a byte that makes it no UTF-8.
bool TextCodec::Decoder::may_change(std::span<const int32_t> tokens,
                                    const std::string& text) const {
  static constexpr std::string_view kIncomplete = "\xef\xbf\xbd";
  const int32_t no_character = codec_.tokenizer_->id_of("<0xFF>");
  if (text.ends_with(kIncomplete) || no_character < 0) {
    return text.ends_with(kIncomplete);
  }
  std::vector<int32_t> longer(tokens.begin(), tokens.end());
  longer.push_back(no_character);
  return !codec_.tokenizer_->decode(longer).starts_with(text);
}

/// The text of the tokens behind end_. With a tokenizer it is the difference of two decodings that
/// begin with the same earlier tokens, because a token's text may depend on those before it. A text
/// that later tokens may change waits for them, unless `all`.
std::string TextCodec::Decoder::piece(bool all) {
  const std::span<const int32_t> known = std::span(tokens_).subspan(begin_);
  const std::string before = codec_.tokenizer_->decode(known.first(end_ - begin_));
  const std::string now = codec_.tokenizer_->decode(known);
  if (!all && (now.size() <= before.size() || may_change(known, now))) {
    return "";
  }
  // Tokens of bytes may change the text of the prompt before them, which is not written again.
  const std::string added = now.starts_with(before)
                                ? now.substr(before.size())
                                : codec_.tokenizer_->decode(known.subspan(end_ - begin_));
  begin_ = end_;
  end_ = tokens_.size();
  return added;
}

std::string TextCodec::Decoder::add(int32_t token) {
  if (!codec_.tokenizer_) {
    return codec_.characters_.size() > 0 ? codec_.characters_.decode({&token, 1})
                                         : fmt::format(" {}", token);
  }
  tokens_.push_back(token);
  return piece(false);
}

std::string TextCodec::Decoder::rest() {
  return codec_.tokenizer_ && end_ < tokens_.size() ? piece(true) : "";
}

}  // namespace espalier::cli
