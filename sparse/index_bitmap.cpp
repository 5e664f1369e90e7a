#include <algorithm>
#include <bit>
#include <cstring>

#include "sparse/index_codings.h"
#include "src/core/error.h"

namespace espalier::sparse::bitmap_coding {

int64_t word_count(int64_t size) { return (size + 63) / 64; }

int64_t rank_count(int64_t size) { return (word_count(size) + kWordsPerRank - 1) / kWordsPerRank; }

void check_bytes(std::span<const uint8_t> bytes, int64_t size, int64_t kept) {
  const auto words = static_cast<size_t>(word_count(size));
  check(bytes.size() == words * sizeof(uint64_t),
        "bitmap index: {} elements need {} bytes, there are {}", size, words * sizeof(uint64_t),
        bytes.size());
  int64_t ones = 0;
  uint64_t word = 0;
  for (size_t i = 0; i < words; ++i) {
    std::memcpy(&word, bytes.data() + i * sizeof(word), sizeof(word));
    ones += count_ones({&word, 1});
  }
  const auto used = static_cast<unsigned>(size % 64);
  check(used == 0 || (word >> used) == 0, "bitmap index: a bit is set beyond element {}", size - 1);
  check(ones == kept, "bitmap index: {} bits are set, but {} elements should be kept", ones, kept);
}

void build_ranks(std::span<const uint64_t> words, std::span<uint32_t> ranks) {
  int64_t before = 0;
  for (size_t j = 0; j < ranks.size(); ++j) {
    ranks[j] = static_cast<uint32_t>(before);
    const size_t begin = j * kWordsPerRank;
    before +=
        count_ones(words.subspan(begin, std::min<size_t>(kWordsPerRank, words.size() - begin)));
  }
}

void decode(std::span<const uint64_t> words, std::span<const uint32_t> ranks, int64_t first,
            std::span<int32_t> out) {
  if (out.empty()) {
    return;
  }
  // The last block that starts with no more than `first` ones before it.
  const auto block = std::ranges::upper_bound(ranks, first) - ranks.begin() - 1;
  auto skip = first - ranks[static_cast<size_t>(block)];
  auto at = static_cast<size_t>(block * kWordsPerRank);
  uint64_t word = words[at];
  for (int64_t ones = count_ones({&word, 1}); skip >= ones; ones = count_ones({&word, 1})) {
    skip -= ones;
    word = words[++at];
  }
  for (; skip > 0; --skip) {
    word &= word - 1;
  }
  int32_t* next = out.data();
  int32_t* const end = next + out.size();
  for (;; word = words[++at]) {
    const auto base = static_cast<int32_t>(at * 64);
    if (end - next >= 64) {  // room for any word: no test for the end at each one
      for (; word != 0; word &= word - 1) {
        *next++ = base + std::countr_zero(word);
      }
    } else {
      for (; word != 0 && next != end; word &= word - 1) {
        *next++ = base + std::countr_zero(word);
      }
    }
    if (next == end) {
      return;
    }
  }
}

int64_t kept_before(std::span<const uint64_t> words, std::span<const uint32_t> ranks,
                    int64_t dense) {
  // `dense` = size may lie just behind the last word or block: start from the last one that exists.
  const auto word = std::min(static_cast<size_t>(dense) / 64, words.size() - 1);
  const auto block = word / kWordsPerRank;
  const auto begin = block * kWordsPerRank;
  const auto in_word = dense - static_cast<int64_t>(word * 64);
  const uint64_t below = in_word == 64 ? ~uint64_t{0} : (uint64_t{1} << in_word) - 1;
  const uint64_t part = words[word] & below;
  return ranks[block] + count_ones(words.subspan(begin, word - begin)) + count_ones({&part, 1});
}

}  // namespace espalier::sparse::bitmap_coding
