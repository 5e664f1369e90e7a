#pragma once
// Encodes words of SentencePiece BPE models without the library: the same tokens, faster. Refuses
// words that the normalizer changes. The rank of a pair is the position of its merged piece in
// descending order of scores. User-defined pieces in a word, each the longest at its place, become
// tokens that merge with nothing. The text between them is cut between characters that no piece
// holds side by side; the tokens of these parts are cached.
#include <array>
#include <bitset>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/tokenizer/pair_merger.h"
#include "io/tokenizer/piece_matcher.h"
#include "io/tokenizer/sentencepiece_file.h"
#include "io/tokenizer/word_cache.h"

namespace espalier::io {

class SentencePieceMerger {
 public:
  /// Memory of an encoding; one per thread.
  struct Scratch {
    WordCache cache;  ///< of parts of words; words may share it
    PairMerger::Scratch merges;
  };

  /// Encodes no word if scores alone do not determine the library's result: the model is not of
  /// BPE, has unused pieces, or two pieces that merges make have the same score, or a normal or
  /// user-defined piece the text of a reserved one. Nor if a piece has more than 256 bytes, or
  /// pieces can be cut in more than 16 ways on average. `file` must outlive it.
  explicit SentencePieceMerger(const SentencePieceFile& file);

  /// Appends the tokens of `word`, a part that does not begin the text. False: only the library can
  /// encode it; nothing is appended.
  bool encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;

 private:
  static constexpr int32_t kOnlyLibrary = -1;  ///< of a character: only the library can encode it
  static constexpr int32_t kBytes = -2;        ///< it becomes the pieces of its bytes
  void find_bytes(const SentencePieceFile& file);
  void find_characters(const SentencePieceFile& file, const std::vector<int32_t>& ranked);
  void find_user_defined(const SentencePieceFile& file);
  void set(char32_t point, int32_t id);
  int32_t id_of(std::string_view word, size_t at) const;
  bool can_cut(char before, char after) const;
  void encode_between(std::string_view text, Scratch& scratch, std::vector<int32_t>& out) const;
  void merge(std::string_view part, Scratch& scratch, std::vector<int32_t>& out) const;
  PairMerger merger_;
  const CharacterMap& characters_;
  bool removes_spaces_ = false;
  int32_t space_ = -1;                ///< -1: no word can be encoded
  std::array<int32_t, 128> ascii_{};  ///< ids of characters, kOnlyLibrary or kBytes
  std::unordered_map<char32_t, int32_t> others_;
  std::bitset<size_t{128} * 128> neighbours_;  ///< pairs of ASCII characters that a piece holds
  int32_t unknown_ = kOnlyLibrary;             ///< of characters in no piece
  std::array<int32_t, 256> byte_ids_{};        ///< of byte pieces
  PieceMatcher user_defined_;                  ///< with spaces in place of their marks
};

}  // namespace espalier::io
