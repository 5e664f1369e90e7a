#include <algorithm>
#include <bit>
#include <cstring>

#include "sparse/index/bit_stream.h"
#include "sparse/index/encoding.h"
#include "src/core/error.h"

namespace espalier::sparse {

namespace bitmap_coding {

int64_t word_count(int64_t size) { return (size + 63) / 64; }

int64_t prefix_counts_size(int64_t size) {
  return (word_count(size) + kWordsPerCount - 1) / kWordsPerCount;
}

void build_prefix_counts(std::span<const uint64_t> words, std::span<uint32_t> prefix_counts) {
  int64_t before = 0;
  for (size_t j = 0; j < prefix_counts.size(); ++j) {
    prefix_counts[j] = static_cast<uint32_t>(before);
    const size_t begin = j * kWordsPerCount;
    before +=
        count_ones(words.subspan(begin, std::min<size_t>(kWordsPerCount, words.size() - begin)));
  }
}

void decode(std::span<const uint64_t> words, std::span<const uint32_t> prefix_counts, int64_t first,
            std::span<int32_t> out) {
  if (out.empty()) {
    return;
  }
  // The last block that starts with no more than `first` ones before it.
  const auto block = std::ranges::upper_bound(prefix_counts, first) - prefix_counts.begin() - 1;
  auto skip = first - prefix_counts[static_cast<size_t>(block)];
  auto at = static_cast<size_t>(block * kWordsPerCount);
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

using bitmap_coding::kWordsPerCount;

size_t exact_bytes(const Mask&, const Counts& counts) { return word_bytes(counts.size); }

int64_t prefix_counts_size(const Counts& counts) {
  return bitmap_coding::prefix_counts_size(counts.size);
}

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

void build_prefix_counts(const Coded& coded, std::span<uint32_t> prefix_counts) {
  bitmap_coding::build_prefix_counts(coded.words(), prefix_counts);
}

void decode(const Coded& coded, int64_t first, std::span<int32_t> out) {
  bitmap_coding::decode(coded.words(), coded.prefix_counts, first, out);
}

int64_t kept_before(const Coded& coded, int64_t dense) {
  const auto words = coded.words();
  // `dense` = size may lie just behind the last word or block: start from the last one that exists.
  const auto word = std::min(static_cast<size_t>(dense) / 64, words.size() - 1);
  const auto block = word / kWordsPerCount;
  const auto begin = block * kWordsPerCount;
  const uint64_t part =
      words[word] & low_mask(static_cast<int>(dense - static_cast<int64_t>(word * 64)));
  return coded.prefix_counts[block] + count_ones(words.subspan(begin, word - begin)) +
         count_ones({&part, 1});
}

constexpr Coding kCoding{.exact_bytes = exact_bytes,
                         .prefix_counts_size = prefix_counts_size,
                         .encode = encode,
                         .check = check_data,
                         .build_prefix_counts = build_prefix_counts,
                         .decode = decode,
                         .kept_before = kept_before};

}  // namespace

constinit const Encoding Encoding::bitmap{
    .name = "bitmap",
    .help = "one bit per element, plus a 32-bit prefix count every 512",
    .coding = &kCoding,
    .kernel_form = KernelForm::bitmap};

}  // namespace espalier::sparse
