#pragma once
// Byte-pair encoding: a word begins as its characters (or bytes), and the adjacent pair of lowest
// rank is merged until no pair has a rank (Sennrich et al., ACL 2016).
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/tokenizer/json_field.h"
#include "io/tokenizer/pair_merger.h"
#include "io/tokenizer/word_cache.h"

namespace espalier::io {

class Bpe {
 public:
  /// Memory of an encoding; one per thread.
  struct Scratch {
    WordCache cache;
    PairMerger::Scratch merges;
  };

  Bpe() = default;
  Bpe(Bpe&&) = default;  // a copy's views would be of the original
  Bpe& operator=(Bpe&&) = default;

  /// `bytes`: words are bytes, and the vocabulary writes a byte as a character (ByteLevel).
  static Bpe read(const JsonField& model, bool bytes);

  /// Appends the tokens of a word.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;

  /// Beginning at `from` > 0: the first place before a "▁" at which the word can be cut without a
  /// change of its tokens, because no token of the model holds the characters beside the cut;
  /// word.size(): there is none.
  size_t cut_after(std::string_view word, size_t from) const;

  /// -1: no such token.
  int32_t id_of(std::string_view token) const;
  /// Null: no such token.
  const std::string* token_of(int32_t id) const;
  int64_t tokens() const { return static_cast<int64_t>(tokens_.size()); }
  int32_t largest_id() const { return largest_id_; }

 private:
  void read_vocabulary(const JsonField& vocabulary);
  void read_merges(const JsonField& merges);
  void find_symbols();
  void find_cuts(const std::vector<int32_t>& merged);
  int32_t character_id(std::string_view character) const;
  void encode_uncached(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;
  void begin_symbols(std::string_view word, Scratch& scratch) const;

  bool bytes_ = false;
  bool ignore_merges_ = false;
  bool byte_fallback_ = false;
  bool fuse_unknown_ = false;
  std::string unknown_;  ///< empty: characters without token are left out
  int32_t unknown_id_ = -1;
  std::string file_;

  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, int32_t> id_of_;   ///< views of tokens_
  std::unordered_map<int32_t, uint32_t> index_of_;        ///< id: place in tokens_
  std::unordered_map<std::string, int32_t> id_of_bytes_;  ///< of words, for ignore_merges
  std::array<int32_t, 256> byte_ids_{};                   ///< of a byte's character; -1: none
  std::array<int32_t, 256> fallback_ids_{};               ///< of "<0x00>" to "<0xFF>"
  std::array<int32_t, 128> ascii_ids_{};
  std::unordered_map<char32_t, int32_t> character_ids_;
  bool has_separator_ = false;                ///< "▁" is a token
  std::array<bool, 128> cuts_after_ascii_{};  ///< "x▁" is in no token
  std::unordered_map<char32_t, bool> cuts_after_;
  PairMerger merger_;
  int32_t largest_id_ = -1;
};

/// The character that stands for a byte in ByteLevel vocabularies (GPT-2's), as UTF-8.
const std::string& byte_character(unsigned char byte);
/// The bytes of a token of such a vocabulary; false: it has other characters.
bool bytes_of_characters(std::string_view token, std::string& bytes);

}  // namespace espalier::io
