#include "sparse/index_split.h"

#include "src/core/error.h"

namespace espalier::sparse {

Split split(std::span<const uint8_t> data, int64_t kept, int low_bits) {
  const size_t lows = word_bytes(kept * low_bits);
  return {low_bits, data.first(lows), data.subspan(lows)};
}

size_t split_bytes(int64_t kept, int low_bits, int64_t zeros) {
  return word_bytes(kept * low_bits) + word_bytes(kept + zeros);
}

void check_split(std::string_view name, const Coded& coded, int low_bits, int64_t most_zeros) {
  const size_t lows = word_bytes(coded.kept * low_bits);
  const size_t least = split_bytes(coded.kept, low_bits, 0);
  const size_t most = split_bytes(coded.kept, low_bits, most_zeros);
  check(coded.data.size() >= least && coded.data.size() <= most && coded.data.size() % 8 == 0,
        "{} index: {} bytes for {} of {} kept elements, there should be {} to {} in steps of 8",
        name, coded.data.size(), coded.kept, coded.size, least, most);
  const auto used = static_cast<int>(coded.kept * low_bits % 64);
  check(used == 0 || load_word(coded.data, lows - 8) >> used == 0,
        "{} index: a bit is set behind the low parts", name);
  const Split numbers = split(coded.data, coded.kept, low_bits);
  int64_t ones = 0;
  uint64_t word = 1;
  for (size_t at = 0; at < numbers.highs.size(); at += sizeof(word)) {
    word = load_word(numbers.highs, at);
    ones += count_ones({&word, 1});
  }
  check(ones == coded.kept, "{} index: {} unary parts for {} kept elements", name, ones,
        coded.kept);
  check(word != 0, "{} index: zero words follow the last unary part", name);
}

void read_zeros(std::span<const uint8_t> highs, int64_t begin, std::span<int32_t> out) {
  int32_t* next = out.data();
  int32_t* const end = next + out.size();
  size_t at = static_cast<size_t>(begin / 64) * sizeof(uint64_t);
  uint64_t word = load_word(highs, at) & ~low_mask(static_cast<int>(begin % 64));
  auto zeros = static_cast<int32_t>(-(begin % 64));  // of the word's first bit, less ones so far
  while (next != end) {
    if (end - next >= 64) {  // room for any word: no test for the end at each one
      for (; word != 0; word &= word - 1) {
        *next++ = zeros-- + std::countr_zero(word);
      }
    } else {
      for (; word != 0 && next != end; word &= word - 1) {
        *next++ = zeros-- + std::countr_zero(word);
      }
    }
    at += sizeof(word);
    word = load_word(highs, at);
    zeros += 64;
  }
}

}  // namespace espalier::sparse
