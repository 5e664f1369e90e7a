#include "io/tokenizer/word_cache.h"

#include <cstring>

namespace espalier::io {
namespace {

constexpr uint64_t kMix = 0x9e3779b97f4a7c15U;

/// Up to 8 bytes, padded with zeros: two loads that overlap.
uint64_t padded_load(const char* from, size_t bytes) {
  const auto load = [from]<class Number>(Number number, size_t at) {
    std::memcpy(&number, from + at, sizeof(number));
    return uint64_t{number};
  };
  if (bytes == 8) {
    return load(uint64_t{}, 0);
  }
  if (bytes >= 4) {
    return load(uint32_t{}, 0) | load(uint32_t{}, bytes - 4) << 8 * (bytes - 4);
  }
  if (bytes >= 2) {
    return load(uint16_t{}, 0) | load(uint16_t{}, bytes - 2) << 8 * (bytes - 2);
  }
  return bytes == 1 ? load(uint8_t{}, 0) : 0;
}

}  // namespace

WordCache::WordCache() : entries_(size_t{1} << kBits) {}

WordCache::Entry& WordCache::entry_of(std::string_view word, std::array<uint64_t, 3>& key) {
  for (size_t i = 0; i < key.size(); ++i) {
    const size_t at = std::min(8 * i, word.size());
    key[i] = padded_load(word.data() + at, std::min<size_t>(word.size() - at, 8));
  }
  uint64_t hash =
      (key[0] + word.size()) ^ key[1] * 0xc2b2ae3d27d4eb4fU ^ key[2] * 0x165667b19e3779f9U;
  hash *= kMix;
  hash = (hash ^ hash >> 32U) * kMix;
  return entries_[hash >> (64 - kBits)];
}

}  // namespace espalier::io
