#pragma once
// SentencePiece's tokenizer.model, read and checked by ourselves: a protocol buffer of type
// ModelProto (sentencepiece_model.proto of github.com/google/sentencepiece).
//
// The library trusts the file: it follows offsets in `precompiled_charsmap`, fills arrays of fixed
// size with nested matches, and recurses into pieces. A file that passes `read_sentencepiece_file`
// keeps these within bounds.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace espalier::io {

/// `precompiled_charsmap`: texts and their replacements, as a double array (Darts-clone). At each
/// place of a text the longest match counts.
class CharacterMap {
 public:
  CharacterMap() = default;
  /// Throws Failure that begins with `file` if a search may leave the array. Keeps views of `blob`.
  static CharacterMap read(std::string_view blob, const std::string& file);

  /// Bytes of the longest match at the beginning of `text`; 0: none.
  size_t match(std::string_view text, std::string_view& replacement) const;
  /// Whether a text of the map begins with this byte.
  bool begins(unsigned char byte) const { return begins_[byte]; }
  /// Bytes of the longest text of the map.
  size_t longest() const { return longest_; }

 private:
  void check_array(const std::string& file);
  uint32_t unit(size_t at) const;
  std::string_view replacement_of(uint32_t unit) const;

  std::string_view units_;         ///< 4 bytes each, little-endian
  std::string_view replacements_;  ///< each ends with a zero
  std::array<bool, 256> begins_{};
  size_t longest_ = 0;
};

struct SentencePieceFile {
  enum class Model : uint8_t { unigram = 1, bpe = 2, word = 3, character = 4 };
  enum class Kind : uint8_t { normal = 1, unknown, control, user_defined, unused, byte };
  struct Piece {
    std::string_view text{};
    Kind kind = Kind::normal;
    float score = 0;  ///< finite
  };

  std::vector<Piece> pieces{};  ///< by id
  Model model = Model::unigram;
  bool byte_fallback = false;
  bool space_is_suffix = false;   ///< treat_whitespace_as_suffix
  bool begins_with_space = true;  ///< add_dummy_prefix
  bool removes_spaces = true;     ///< remove_extra_whitespaces
  bool escapes_spaces = true;     ///< escape_whitespaces: as U+2581
  bool has_denormalizer = false;  ///< decoded texts are changed
  CharacterMap characters{};
  std::string for_library{};  ///< the file without its self-test, which takes time
};

/// Whether a tokenizer file begins as a SentencePiece model, and not as JSON.
bool is_sentencepiece(std::string_view bytes);
/// Throws Failure that begins with `file` if it is damaged, or of a model that is not supported.
/// Keeps views of `bytes`.
SentencePieceFile read_sentencepiece_file(std::string_view bytes, const std::string& file);

}  // namespace espalier::io
