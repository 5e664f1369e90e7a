#pragma once
// Tokens of words that were encoded before.
#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace espalier::io {

/// Of fixed size (4 MB): a new word takes the place of an old one. For one thread.
class WordCache {
 public:
  static constexpr size_t kMaxBytes = 24;  ///< of a cached word
  static constexpr size_t kMaxTokens = 8;

  WordCache();

  /// Appends the tokens of a word: those in the cache, else those that `encode` appends to `out`.
  template <class Encode>
  void append(std::string_view word, std::vector<int32_t>& out, const Encode& encode) {
    if (word.size() > kMaxBytes || word.empty()) {
      encode();
      return;
    }
    std::array<uint64_t, 3> key{};
    Entry& entry = entry_of(word, key);
    const size_t before = out.size();
    if (entry.bytes == word.size() && entry.word == key) {
      out.resize(before + kMaxTokens);  // a copy of fixed size is faster
      std::copy_n(entry.tokens.begin(), kMaxTokens,
                  out.begin() + static_cast<std::ptrdiff_t>(before));
      out.resize(before + entry.count);
      return;
    }
    encode();
    const size_t count = out.size() - before;
    if (count <= kMaxTokens) {
      entry.word = key;
      entry.bytes = static_cast<uint8_t>(word.size());
      entry.count = static_cast<uint8_t>(count);
      std::copy_n(out.end() - static_cast<std::ptrdiff_t>(count), count, entry.tokens.begin());
    }
  }

 private:
  struct Entry {
    std::array<uint64_t, 3> word{};  ///< padded with zeros
    std::array<int32_t, kMaxTokens> tokens{};
    uint8_t bytes = 0;
    uint8_t count = 0;
  };
  /// The only place for a word, which another one may hold; `key` becomes the word's.
  Entry& entry_of(std::string_view word, std::array<uint64_t, 3>& key);

  static constexpr unsigned kBits = 16;
  std::vector<Entry> entries_;
};

}  // namespace espalier::io
