#pragma once
// Pieces that a text may begin with: of several the longest one. A search takes one hash of each
// length that pieces with the text's first byte have.
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace espalier::io {

class PieceMatcher {
 public:
  /// Of equal texts the first one counts. `text` is not empty.
  void add(std::string text, int32_t id) {
    std::vector<size_t>& lengths = lengths_[static_cast<unsigned char>(text[0])];
    const auto place = std::ranges::lower_bound(lengths, text.size(), std::greater<>());
    if (place == lengths.end() || *place != text.size()) {
      lengths.insert(place, text.size());
    }
    longest_ = std::max(longest_, text.size());
    ids_.try_emplace(std::move(text), id);
  }
  /// Bytes of the longest piece at the beginning of `text`, which is not empty; 0: none.
  size_t match(std::string_view text, int32_t& id) const {
    for (const size_t length : lengths_[static_cast<unsigned char>(text[0])]) {
      if (length <= text.size()) {
        if (const auto found = ids_.find(text.substr(0, length)); found != ids_.end()) {
          id = found->second;
          return length;
        }
      }
    }
    return 0;
  }
  /// Whether a piece begins with this byte.
  bool begins(unsigned char byte) const { return !lengths_[byte].empty(); }
  size_t longest() const { return longest_; }  ///< bytes of the longest piece

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
  std::array<std::vector<size_t>, 256> lengths_{};  ///< by first byte, descending
  size_t longest_ = 0;
};

}  // namespace espalier::io
