#pragma once
// Pieces that a text may begin with: of several the longest one. A search narrows the pieces with
// the text's first byte by one byte after the other: O(bytes log pieces).
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace espalier::io {

class PieceMatcher {
 public:
  using Piece = std::pair<std::string, int32_t>;  ///< text and id

  PieceMatcher() = default;
  /// No text is empty, and texts differ.
  explicit PieceMatcher(std::vector<Piece> all) {
    std::ranges::sort(all);
    for (Piece& piece : all) {
      longest_ = std::max(longest_, piece.first.size());
      pieces_[static_cast<unsigned char>(piece.first[0])].push_back(std::move(piece));
    }
  }
  /// Bytes of the longest piece at the beginning of `text`, which is not empty; 0: none.
  size_t match(std::string_view text, int32_t& id) const {
    const std::vector<Piece>& pieces = pieces_[static_cast<unsigned char>(text[0])];
    size_t longest = 0;
    auto begin = pieces.begin();
    auto end = pieces.end();
    for (size_t size = 1; begin != end; ++size) {  // pieces with the first `size` bytes of the text
      if (begin->first.size() == size) {           // the shortest is the first
        longest = size;
        id = begin->second;
        ++begin;
      }
      if (size == text.size()) {
        break;
      }
      const auto byte_of = [size](const Piece& piece) {
        return static_cast<unsigned char>(piece.first[size]);
      };
      const auto byte = static_cast<unsigned char>(text[size]);
      begin = std::ranges::lower_bound(begin, end, byte, {}, byte_of);
      end = std::ranges::upper_bound(begin, end, byte, {}, byte_of);
    }
    return longest;
  }
  /// Whether a piece begins with this byte.
  bool begins(unsigned char byte) const { return !pieces_[byte].empty(); }
  size_t longest() const { return longest_; }  ///< bytes of the longest piece

 private:
  std::array<std::vector<Piece>, 256> pieces_{};  ///< by first byte, ascending
  size_t longest_ = 0;
};

}  // namespace espalier::io
