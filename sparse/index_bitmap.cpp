#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "sparse/index_codings.h"
#include "src/core/error.h"

namespace espalier::sparse::bitmap_coding {
namespace {

/// For each byte: how many ones, and where they are.
struct ByteTable {
  std::array<uint8_t, 256> ones{};
  std::array<std::array<uint8_t, 8>, 256> places{};

  constexpr ByteTable() {
    for (unsigned byte = 0; byte < 256; ++byte) {
      for (uint8_t bit = 0; bit < 8; ++bit) {
        if ((byte >> bit & 1U) != 0) {
          places[byte][ones[byte]++] = bit;
        }
      }
    }
  }
};
constexpr ByteTable kBytes;

/// Positions of the ones of `word`, whose bit 0 is element `base`, to `next`; returns the end of them.
/// Writes eight numbers a byte and keeps as many as it has ones: no branch depends on the bits, which
/// in random masks nothing predicts.
int32_t* write_positions(uint64_t word, int32_t base, int32_t* next) {
  for (; word != 0; word >>= 8, base += 8) {
    const auto byte = static_cast<uint8_t>(word);
    for (size_t k = 0; k < 8; ++k) {
      next[k] = base + kBytes.places[byte][k];
    }
    next += kBytes.ones[byte];
  }
  return next;
}

}  // namespace

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
  // The table writes eight numbers a byte of the word, also those that the next byte overwrites: up to
  // 64 + 8 beyond `next`.
  while (end - next >= 72) {
    next = write_positions(word, static_cast<int32_t>(at * 64), next);
    word = words[++at];  // exists: at least eight more ones are to come
  }
  for (;; word = words[++at]) {
    for (; word != 0 && next != end; word &= word - 1) {
      *next++ = static_cast<int32_t>(at * 64) + std::countr_zero(word);
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
