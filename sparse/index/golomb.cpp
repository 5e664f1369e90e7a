// Rice code: each kept element is the number of pruned ones before it since the last kept one, cut
// at `low_bits` bits (split.h). With that many bits the code of a random mask is shortest:
// the power of two that is no less than ln((1 + sqrt 5) / 2) / f (Kiely, "Selecting the Golomb
// parameter in Rice coding", IPN 42-159, 2004, for small f).
#include <algorithm>
#include <array>
#include <cmath>

#include "sparse/index/split.h"
#include "src/core/error.h"

namespace espalier::sparse {
namespace {

/// Where reading can start: before kept element kRestartEvery * j, which lies at or above `base`
/// and whose unary part begins at bit `high`.
struct Restart {
  uint32_t base;
  uint32_t high;
};

std::span<const Restart> restarts(const Coded& coded) {
  return {reinterpret_cast<const Restart*>(coded.ranks.data()), coded.ranks.size() / 2};
}

int low_bits(int64_t size, int64_t kept) {
  const double least = 0.4812 * static_cast<double>(size);
  int bits = 0;
  while (kept > 0 && static_cast<double>(kept << bits) < least) {
    ++bits;
  }
  return bits;
}

size_t exact_bytes(const Mask& mask, const Counts& counts) {
  const int bits = low_bits(counts.size, counts.kept);
  int64_t zeros = 0;
  int64_t base = 0;
  for_each_one(mask.words(), [&](int64_t position) {
    zeros += (position - base) >> bits;
    base = position + 1;
  });
  return split_bytes(counts.kept, bits, zeros);
}

/// A gap reaches j 2^bits with probability (1 - f)^(j 2^bits): the sum over j is geometric.
double expected_bytes(const Counts& counts) {
  if (counts.kept == 0) {
    return 0;
  }
  const int bits = low_bits(counts.size, counts.kept);
  const double f = static_cast<double>(counts.kept) / static_cast<double>(counts.size);
  const double longer = std::pow(1 - f, std::ldexp(1.0, bits));
  const double zeros = static_cast<double>(counts.kept) * longer / (1 - longer);
  return static_cast<double>(split_bytes(counts.kept, bits, static_cast<int64_t>(zeros)));
}

int64_t rank_count(const Counts& counts) { return 2 * restart_count(counts.kept); }

void encode(const Mask& mask, const Counts& counts, std::span<uint8_t> data) {
  const int bits = low_bits(counts.size, counts.kept);
  const size_t low_bytes = word_bytes(counts.kept * bits);
  BitWriter lows(data.first(low_bytes));
  BitWriter highs(data.subspan(low_bytes));
  int64_t base = 0;
  for_each_one(mask.words(), [&](int64_t position) {
    const int64_t gap = position - base;
    lows.put(static_cast<uint64_t>(gap) & low_mask(bits), bits);
    highs.put_unary(gap >> bits);
    base = position + 1;
  });
  lows.finish();
  highs.finish();
}

void check_data(const Coded& coded) {
  const int bits = low_bits(coded.size, coded.kept);
  check_split("golomb", coded, bits, coded.size >> bits);
  int64_t end = 0;
  int64_t zeros_before = 0;
  for_each_number(split(coded.data, coded.kept, bits), [&](int64_t zeros, uint64_t low) {
    end += ((zeros - zeros_before) << bits) + static_cast<int64_t>(low) + 1;
    zeros_before = zeros;
  });
  check(end <= coded.size, "golomb index: the last kept element lies at {}, beyond the size {}",
        end - 1, coded.size);
}

void build_ranks(const Coded& coded, std::span<uint32_t> ranks) {
  const int bits = low_bits(coded.size, coded.kept);
  int64_t k = 0;
  int64_t low_sum = 0;
  int64_t zeros_before = 0;
  for_each_number(split(coded.data, coded.kept, bits), [&](int64_t zeros, uint64_t low) {
    if (k % kRestartEvery == 0) {
      ranks[static_cast<size_t>(k / kRestartEvery * 2)] =
          static_cast<uint32_t>((zeros_before << bits) + low_sum + k);
      ranks[static_cast<size_t>(k / kRestartEvery * 2 + 1)] =
          static_cast<uint32_t>(zeros_before + k);
    }
    low_sum += static_cast<int64_t>(low);
    zeros_before = zeros;
    ++k;
  });
}

/// The first out.size() elements behind restart point j.
void decode_from(const Coded& coded, int64_t j, std::span<int32_t> out) {
  const Restart& start = restarts(coded)[static_cast<size_t>(j)];
  const Split numbers = split(coded.data, coded.kept, low_bits(coded.size, coded.kept));
  read_zeros(numbers.highs, start.high, out);
  add_low_sums(numbers, j * kRestartEvery, static_cast<int32_t>(start.base), out);
}

void decode(const Coded& coded, int64_t first, std::span<int32_t> out) {
  decode_by_restarts(coded, decode_from, first, out);
}

int64_t kept_before(const Coded& coded, int64_t dense) {
  const auto all = restarts(coded);
  const auto next = std::ranges::upper_bound(all, dense, std::less<>(),
                                             [](const Restart& r) { return int64_t{r.base}; });
  // All elements before a restart lie below its base: the last base <= dense loses none of them.
  return kept_before_from(coded, decode_from, std::max<int64_t>(next - all.begin() - 1, 0), dense);
}

}  // namespace

const Coding kGolombCoding{.exact_bytes = exact_bytes,
                           .expected_bytes = expected_bytes,
                           .rank_count = rank_count,
                           .encode = encode,
                           .check = check_data,
                           .build_ranks = build_ranks,
                           .decode = decode,
                           .kept_before = kept_before};

}  // namespace espalier::sparse
