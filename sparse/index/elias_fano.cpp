// Elias-Fano: each position cut at floor(log2(size / kept)) bits (split.h); the high parts
// ascend, so their differences stand in unary. A restart point is where the one of kept element
// kRestartEvery * j lies: its position follows from that and its low part alone.
#include <algorithm>

#include "sparse/index/split.h"
#include "src/core/error.h"

namespace espalier::sparse {
namespace {

int low_bits(int64_t size, int64_t kept) {
  return kept == 0 ? 0 : static_cast<int>(std::bit_width(static_cast<uint64_t>(size / kept))) - 1;
}

/// Zeros in the unary part when the last kept element is `last`.
int64_t zeros_for(int64_t last, int bits) { return last >> bits; }

size_t exact_bytes(const Mask& mask, const Counts& counts) {
  if (counts.kept == 0) {
    return 0;
  }
  size_t word = mask.words().size() - 1;
  while (mask.words()[word] == 0) {
    --word;
  }
  const int64_t last = static_cast<int64_t>(word) * 64 + 63 - std::countl_zero(mask.words()[word]);
  const int bits = low_bits(counts.size, counts.kept);
  return split_bytes(counts.kept, bits, zeros_for(last, bits));
}

/// The last kept element of a random mask lies 1 / f before the end.
double expected_bytes(const Counts& counts) {
  if (counts.kept == 0) {
    return 0;
  }
  const int bits = low_bits(counts.size, counts.kept);
  const int64_t last = counts.size - std::max<int64_t>(1, counts.size / (counts.kept + 1));
  return static_cast<double>(split_bytes(counts.kept, bits, zeros_for(last, bits)));
}

int64_t rank_count(const Counts& counts) { return restart_count(counts.kept); }

void encode(const Mask& mask, const Counts& counts, std::span<uint8_t> data) {
  const int bits = low_bits(counts.size, counts.kept);
  const size_t low_bytes = word_bytes(counts.kept * bits);
  BitWriter lows(data.first(low_bytes));
  BitWriter highs(data.subspan(low_bytes));
  int64_t high = 0;
  for_each_one(mask.words(), [&](int64_t position) {
    lows.put(static_cast<uint64_t>(position) & low_mask(bits), bits);
    highs.put_unary((position >> bits) - high);
    high = position >> bits;
  });
  lows.finish();
  highs.finish();
}

void check_data(const Coded& coded) {
  const int bits = low_bits(coded.size, coded.kept);
  check_split("elias-fano", coded, bits, coded.size >> bits);
  int64_t last = -1;
  for_each_number(split(coded.data, coded.kept, bits), [&](int64_t zeros, uint64_t low) {
    const int64_t position = (zeros << bits) + static_cast<int64_t>(low);
    check(position > last && position < coded.size,
          "elias-fano index: position {} must lie above {} and below {}", position, last,
          coded.size);
    last = position;
  });
}

void build_ranks(const Coded& coded, std::span<uint32_t> ranks) {
  int64_t k = 0;
  const int bits = low_bits(coded.size, coded.kept);
  for_each_number(split(coded.data, coded.kept, bits), [&](int64_t zeros, uint64_t) {
    if (k % kRestartEvery == 0) {
      ranks[static_cast<size_t>(k / kRestartEvery)] = static_cast<uint32_t>(zeros + k);
    }
    ++k;
  });
}

/// The first out.size() elements from restart point j on.
void decode_from(const Coded& coded, int64_t j, std::span<int32_t> out) {
  const int64_t first = j * kRestartEvery;
  const int64_t begin = coded.ranks[static_cast<size_t>(j)];
  const Split numbers = split(coded.data, coded.kept, low_bits(coded.size, coded.kept));
  read_zeros(numbers.highs, begin, out);
  add_lows(numbers, first, static_cast<int32_t>((begin - first) << numbers.low_bits), out);
}

void decode(const Coded& coded, int64_t first, std::span<int32_t> out) {
  decode_by_restarts(coded, decode_from, first, out);
}

int64_t kept_before(const Coded& coded, int64_t dense) {
  // The last restart point whose element lies below `dense`.
  int64_t low = 0;
  int64_t high = static_cast<int64_t>(coded.ranks.size());
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    int32_t position = 0;
    decode_from(coded, middle, {&position, 1});
    (position < dense ? low : high) = middle;
  }
  return kept_before_from(coded, decode_from, low, dense);
}

}  // namespace

const Coding kEliasFanoCoding{.exact_bytes = exact_bytes,
                              .expected_bytes = expected_bytes,
                              .rank_count = rank_count,
                              .encode = encode,
                              .check = check_data,
                              .build_ranks = build_ranks,
                              .decode = decode,
                              .kept_before = kept_before};

}  // namespace espalier::sparse
