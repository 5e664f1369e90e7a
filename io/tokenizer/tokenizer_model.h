#pragma once
// A kind of tokenizer: what Tokenizer and TokenizerStream need of it. tokenizer.json:
// json_tokenizer.h; SentencePiece's tokenizer.model: sentencepiece.h.
//
// All functions are const and may be called from several threads at once.
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/error.h"

namespace espalier::io {

/// Beside a tokenizer.model: its keys add_bos_token and add_eos_token.
inline constexpr std::string_view kTokenizerConfigFile = "tokenizer_config.json";

/// A part of a text in valid UTF-8.
struct TextWindow {
  std::string_view text;
  bool continues = false;  ///< text before it was encoded up to a cut
  bool open = false;       ///< more text may follow
};

class TokenizerModel {
 public:
  TokenizerModel() = default;
  TokenizerModel(const TokenizerModel&) = delete;
  TokenizerModel& operator=(const TokenizerModel&) = delete;
  virtual ~TokenizerModel() = default;

  /// Appends the tokens of the window up to the place that it returns: its end, or, of an open
  /// window, a place at which a cut changes no token of the whole text; 0: there is none.
  virtual size_t encode(const TextWindow& window, std::vector<int32_t>& out) const = 0;
  /// As Tokenizer::decode.
  virtual std::string decode(std::span<const int32_t> ids, bool special) const = 0;
  virtual int64_t vocabulary() const = 0;
  virtual int32_t id_of(std::string_view token) const = 0;
  virtual bool is_special(int32_t id) const = 0;
  /// Tokens that Tokenizer::encode adds before and after a text.
  virtual std::span<const int32_t> before() const = 0;
  virtual std::span<const int32_t> after() const = 0;
  /// The file's bytes.
  virtual const std::string& text() const = 0;
};

/// Of `decode`: ids[place] has no token.
[[noreturn]] inline void fail_unknown_token(int32_t id, size_t place, int64_t vocabulary) {
  fail(
      "token {} at place {} is not in the tokenizer's vocabulary of {}; decode with the tokenizer "
      "that the model was trained with",
      id, place, vocabulary);
}

/// Memory of threads that encode at the same time: each call of `with` has a Workspace of its own,
/// which later calls use again.
template <class Workspace>
class WorkspacePool {
 public:
  template <class Work>
  void with(const Work& work) {
    std::unique_ptr<Workspace> space;
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        space = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    if (space == nullptr) {
      space = std::make_unique<Workspace>();
    }
    work(*space);
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(space));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> idle_;  ///< guarded by the mutex
};

}  // namespace espalier::io
