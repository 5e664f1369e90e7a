#pragma once
// Text and tokens of a file of weights: by its tokenizer, by its characters, or, for data of kind
// "tokens" without a tokenizer, as numbers.
#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/tokenizer.h"
#include "src/cli/shared/weights_file.h"

namespace espalier::cli {

/// The tokenizer of the file `named` (open_tokenizer); if it is empty, for data of kind "tokens"
/// that of the checkpoint, if it has one. Throws Failure if it has more tokens than the network.
std::optional<io::Tokenizer> tokenizer_for(const WeightsFile& file, const std::string& named = "");

class TextCodec {
 public:
  /// `tokenizer`: a file (open_tokenizer) instead of the one in the checkpoint; empty: that one.
  /// Throws Failure for a network of images, a checkpoint without the characters of its vocabulary,
  /// and a tokenizer with more tokens than the network.
  TextCodec(const WeightsFile& file, const std::string& tokenizer);

  /// False: tokens are written as numbers.
  bool is_text() const { return tokenizer_.has_value() || characters_.size() > 0; }
  const std::optional<io::Tokenizer>& tokenizer() const { return tokenizer_; }
  /// Throws Failure for characters that the vocabulary lacks; `option` names the source of numbers
  /// in a Usage error.
  std::vector<int32_t> encode(const std::string& text, std::string_view option) const;
  /// Of `classes` predictions, the first that may be tokens: embeddings often have more rows than
  /// the tokenizer has tokens.
  size_t known(size_t classes) const {
    return tokenizer_ ? std::min(classes, static_cast<size_t>(tokenizer_->vocabulary())) : classes;
  }
  bool is_special(int32_t token) const { return tokenizer_ && tokenizer_->is_special(token); }

  /// The text of a sequence, token by token.
  class Decoder {
   public:
    /// Continues the text of `prompt`. The codec must outlive the decoder.
    Decoder(const TextCodec& codec, std::vector<int32_t> prompt)
        : codec_(codec),
          tokens_(std::move(prompt)),
          begin_(tokens_.size() - std::min(tokens_.size(), kBefore)),
          end_(tokens_.size()) {}
    /// The text that a further token adds; empty while a character is incomplete.
    std::string add(int32_t token);
    /// The text of the tokens that have added nothing yet.
    std::string rest();

   private:
    /// Tokens of the prompt that may change the text of the first token after it.
    static constexpr size_t kBefore = 4;
    bool may_change(std::span<const int32_t> tokens, const std::string& text) const;
    std::string piece(bool all);

    const TextCodec& codec_;
    std::vector<int32_t> tokens_;
    size_t begin_, end_;  ///< tokens [begin_, end_) are the last whose text has been returned
  };

 private:
  std::vector<int32_t> numbers(std::string text, std::string_view option) const;

  std::string file_;
  int64_t classes_;
  std::optional<io::Tokenizer> tokenizer_;
  io::Vocabulary characters_;
};

}  // namespace espalier::cli
