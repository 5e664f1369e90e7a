#pragma once
// Tokenizers of published models: Hugging Face's tokenizer.json (byte-pair encoding of bytes, as of
// GPT-2, OPT, GPT-NeoX, Llama 3 and Qwen, or of characters, as of Llama 2, Mistral and Gemma), and
// SentencePiece's tokenizer.model. Tokens and texts are those of the libraries `tokenizers` and
// `sentencepiece` (docs/tokenizers.md); other types of parts are refused by name.
//
// Text that is no valid UTF-8 is encoded with U+FFFD in place of each invalid part. All functions
// that are const may be called from several threads at once.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/tokenizer_model.h"

namespace espalier::io {

class Tokenizer {
 public:
  /// The content tells the format. Of a tokenizer.model, a tokenizer_config.json in the same folder
  /// is read, too. Throws Failure that names the file, the place in it, and what is supported.
  static Tokenizer from_file(const std::filesystem::path& path);
  /// `text`: the file's bytes; `name` begins the messages; `config`: the tokenizer_config.json of a
  /// tokenizer.model, or empty.
  static Tokenizer from_text(std::string text, const std::string& name = "tokenizer.json",
                             const std::string& config = "");

  /// `special`: with the tokens before and after a text (bos, eos): those of the post-processor of
  /// a tokenizer.json; of a tokenizer.model, those that its tokenizer_config.json requests, or bos.
  std::vector<int32_t> encode(std::string_view text, bool special = true) const;
  /// Throws Failure for an id without token. `special`: with the texts of special tokens. Parts of
  /// characters become U+FFFD.
  std::string decode(std::span<const int32_t> ids, bool special = true) const;

  /// The largest id + 1: rows that an embedding needs at least.
  int64_t vocabulary() const;
  /// The id of a token as the file writes it; -1: none.
  int32_t id_of(std::string_view token) const;
  /// Whether `decode` can leave the token out.
  bool is_special(int32_t id) const;
  /// The file's bytes.
  const std::string& text() const;

 private:
  friend class TokenizerStream;
  explicit Tokenizer(std::shared_ptr<const TokenizerModel> model) : model_(std::move(model)) {}
  std::shared_ptr<const TokenizerModel> model_;
};

/// Encodes a text that comes in parts, to the tokens of the whole: `encode(text, false)`. It keeps
/// about 256 KiB of the text, or as much as has no place where a cut changes no token.
class TokenizerStream {
 public:
  explicit TokenizerStream(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

  /// Appends tokens that no later text can change.
  void add(std::string_view text, std::vector<int32_t>& tokens);
  /// Appends the rest. The next `add` begins another text.
  void finish(std::vector<int32_t>& tokens);

  /// Bytes of text to keep; for tests.
  void set_window(size_t bytes) { window_ = wanted_ = bytes; }

 private:
  void take(std::string_view text);

  Tokenizer tokenizer_;
  std::string pending_;     ///< valid UTF-8 that is not encoded yet
  std::string incomplete_;  ///< the beginning of a code point
  std::string repaired_;
  bool continues_ = false;  ///< tokens of an earlier part are given out
  size_t window_ = size_t{1} << 18;
  size_t wanted_ = window_;  ///< bytes of pending_ for the next attempt
};

}  // namespace espalier::io
