#pragma once
// Added tokens: texts that become one token each, found before the model sees the rest. At each
// place the longest one counts. Those with `normalized` are searched in the normalized text.
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace espalier::io {

struct AddedToken {
  std::string content;
  std::string searched;  ///< the content; normalized if `normalized`
  int32_t id = 0;
  bool special = false;
  bool normalized = false;
  bool lstrip = false;       ///< takes the white space before it
  bool rstrip = false;       ///< and after it
  bool single_word = false;  ///< only where no word character touches it
};

/// A set of added tokens, to cut a text by.
class AddedTokenSet {
 public:
  struct Part {
    size_t begin = 0;
    size_t end = 0;
    int32_t token = -1;  ///< -1: other text
  };

  /// Of two tokens that are searched as one text the later counts.
  void add(const AddedToken& token);

  bool empty() const { return tokens_.empty(); }
  size_t longest() const { return longest_; }  ///< bytes
  /// Cuts `text`; parts are appended in order, none of them is empty. True if all occurrences
  /// became tokens: false where one lies within a word that it must not touch.
  bool cut(std::string_view text, std::vector<Part>& parts) const;

 private:
  struct Entry {
    int32_t id = 0;
    bool lstrip = false;
    bool rstrip = false;
    bool single_word = false;
  };
  static constexpr uint32_t kNone = UINT32_MAX;
  const Entry* longest_at(std::string_view text, size_t at, size_t& end) const;

  // A trie of bytes: node 0 is the root.
  struct Node {
    uint32_t entry = kNone;
  };
  std::vector<Node> nodes_{Node{}};
  std::unordered_map<uint64_t, uint32_t> children_;  ///< node << 8 | byte
  bool begins_[256] = {};                            ///< bytes with which tokens begin
  std::vector<Entry> tokens_;
  size_t longest_ = 0;
};

}  // namespace espalier::io
