#include "sparse/index/mask.h"

#include <xxhash.h>

#include <algorithm>

#include "src/core/error.h"

namespace espalier::sparse {
namespace {

size_t words_for(int64_t size) { return (static_cast<size_t>(size) + 63) / 64; }

/// Ones within the last word of a mask of `size` elements (all ones when it is used wholly).
uint64_t tail_bits(int64_t size) {
  const auto used = static_cast<unsigned>(size % 64);
  return used == 0 ? ~uint64_t{0} : (uint64_t{1} << used) - 1;
}

}  // namespace

void check_size(std::string_view name, int64_t elements) {
  check(elements <= kMaxElements,
        "{} has {} elements; at most {} per parameter are supported (32-bit positions): make "
        "model.width, its MLP's width or model.vocabulary smaller",
        name, elements, kMaxElements);
}

Mask::Mask(int64_t size, bool kept) : size_(size) {
  require(size >= 0, "a mask has no negative size", size);
  check(
      size <= kMaxElements,
      "a parameter of {} elements is too large for 32-bit positions (at most {}): split the layer",
      size, kMaxElements);
  words_.assign(words_for(size), kept ? ~uint64_t{0} : 0);
  if (kept && !words_.empty()) {
    words_.back() = tail_bits(size);
  }
}

Mask Mask::from_words(int64_t size, std::span<const uint64_t> words) {
  Mask mask(size, false);
  require(words.size() == mask.words_.size(), "one word per 64 elements", words.size(), size);
  require(words.empty() || (words.back() & ~tail_bits(size)) == 0, "bits beyond the size are zero",
          size);
  std::ranges::copy(words, mask.words_.begin());
  return mask;
}

int64_t Mask::kept() const { return count_ones(words_); }

double Mask::density() const {
  return size_ == 0 ? 1.0 : static_cast<double>(kept()) / static_cast<double>(size_);
}

void Mask::set(int64_t i, bool kept) {
  require(i >= 0 && i < size_, "element within the mask", i, size_);
  const uint64_t bit = uint64_t{1} << (i % 64);
  uint64_t& word = words_[static_cast<size_t>(i) / 64];
  word = kept ? word | bit : word & ~bit;
}

std::vector<int32_t> Mask::positions() const {
  std::vector<int32_t> positions(static_cast<size_t>(kept()));
  int32_t* out = positions.data();
  for_each_one(words_, [&out](int64_t position) { *out++ = static_cast<int32_t>(position); });
  return positions;
}

uint64_t Mask::digest() const {
  return XXH3_64bits_withSeed(words_.data(), words_.size() * sizeof(uint64_t),
                              static_cast<uint64_t>(size_));
}

int64_t count_ones(std::span<const uint64_t> words) {
  // By parallel sums within the word and not std::popcount, which is a library call a word on
  // baseline x86-64; this loop becomes vector code on every target.
  uint64_t total = 0;
  for (uint64_t x : words) {
    x -= (x >> 1) & 0x5555555555555555U;
    x = (x & 0x3333333333333333U) + ((x >> 2) & 0x3333333333333333U);
    x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fU;
    x += x >> 8;
    x += x >> 16;
    x += x >> 32;
    total += x & 0x7f;
  }
  return static_cast<int64_t>(total);
}

}  // namespace espalier::sparse
