#pragma once
// The tokenizer file of a model in the texts of its checkpoint (CheckpointMeta::extra): a
// tokenizer.json as it is, SentencePiece's binary file in base64, because texts hold no zero bytes.
#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "io/checkpoint/checkpoint.h"
#include "io/tokenizer/tokenizer.h"

namespace espalier::io {

/// A tokenizer file of a Hugging Face directory, and the text of a checkpoint that holds it.
struct TokenizerFile {
  std::string_view name;
  std::string_view text;
  bool is_binary = false;  ///< the text is base64
};
/// Of those in a directory the first one is taken.
inline constexpr std::array<TokenizerFile, 3> kTokenizerFiles{
    {{"tokenizer.json", kTokenizerText, false},
     {"tokenizer.model", "hub.tokenizer.model", true},
     {"spiece.model", "hub.spiece.model", true}}};

struct StoredTokenizer {
  TokenizerFile file{};
  std::string bytes{};
};

using ModelTexts = std::map<std::string, std::string>;

void store_tokenizer(const StoredTokenizer& tokenizer, ModelTexts& texts);
void remove_tokenizer(ModelTexts& texts);
/// None, or throws Failure, which begins with `file`, if the text is damaged.
std::optional<StoredTokenizer> stored_tokenizer(const ModelTexts& texts, const std::string& file);
/// The tokenizer of the texts, with their tokenizer_config.json; likewise.
std::optional<Tokenizer> tokenizer_of(const ModelTexts& texts, const std::string& file);

/// RFC 4648, padded, without line ends.
std::string to_base64(std::string_view bytes);
/// None: `text` is no such text.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace espalier::io
