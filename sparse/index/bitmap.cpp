#include <algorithm>
#include <bit>
#include <cstring>

#include "sparse/index/bit_stream.h"
#include "sparse/index/encoding.h"
#include "src/core/error.h"

namespace espalier::sparse {

namespace bitmap_coding {

int64_t word_count(int64_t size) { return (size + 63) / 64; }

int64_t rank_count(int64_t size) { return (word_count(size) + kWordsPerRank - 1) / kWordsPerRank; }

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
    if (end - next >= 64) {  // the whole word fits: no test for the end at each one
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

}  // namespace bitmap_coding

namespace {

using bitmap_coding::kWordsPerRank;

size_t exact_bytes(const Mask&, const Counts& counts) { return word_bytes(counts.size); }

int64_t rank_count(const Counts& counts) { return bitmap_coding::rank_count(counts.size); }

void encode(const Mask& mask, const Counts&, std::span<uint8_t> data) {
  std::memcpy(data.data(), mask.words().data(), data.size());
}

void check_data(const Coded& coded) {
  check_words("bitmap index", coded.data, coded.size);
  int64_t ones = 0;
  for (size_t at = 0; at < coded.data.size(); at += sizeof(uint64_t)) {
    const uint64_t word = load_word(coded.data, at);
    ones += count_ones({&word, 1});
  }
  check(ones == coded.kept, "bitmap index: {} bits are set, but {} elements should be kept", ones,
        coded.kept);
}

void build_ranks(const Coded& coded, std::span<uint32_t> ranks) {
  bitmap_coding::build_ranks(coded.words(), ranks);
}

void decode(const Coded& coded, int64_t first, std::span<int32_t> out) {
  bitmap_coding::decode(coded.words(), coded.ranks, first, out);
}

int64_t kept_before(const Coded& coded, int64_t dense) {
  const auto words = coded.words();
  // `dense` = size may lie just behind the last word or block: start from the last one that exists.
  const auto word = std::min(static_cast<size_t>(dense) / 64, words.size() - 1);
  const auto block = word / kWordsPerRank;
  const auto begin = block * kWordsPerRank;
  const uint64_t part =
      words[word] & low_mask(static_cast<int>(dense - static_cast<int64_t>(word * 64)));
  return coded.ranks[block] + count_ones(words.subspan(begin, word - begin)) +
         count_ones({&part, 1});
}

constexpr Coding kCoding{.exact_bytes = exact_bytes,
                         .rank_count = rank_count,
                         .encode = encode,
                         .check = check_data,
                         .build_ranks = build_ranks,
                         .decode = decode,
                         .kept_before = kept_before};

}  // namespace

constinit const Encoding Encoding::bitmap{
    .name = "bitmap",
    .help = "one bit per element, plus a 32-bit prefix count every 512",
    .coding = &kCoding,
    .kernel_form = KernelForm::bitmap};

}  // namespace espalier::sparse
