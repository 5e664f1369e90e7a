// Rice code: each kept element is the number of pruned ones before it since the last kept one (its
// gap), cut at `low_bits` bits: first the low parts of all gaps, packed, then the high parts in
// unary (so many zeros, then a one), each filled up with zeros to words. With that many low bits
// the code of a random mask is shortest: the power of two that is no less than ln((1 + sqrt 5) / 2)
// / f (Kiely, "Selecting the Golomb parameter in Rice coding", IPN 42-159, 2004, for small f).
//
// The i-th one of the unary part, at bit b, says that the high parts of gaps 0..i sum up to b - i;
// low parts lie at fixed places. So both are read without a branch for each number.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "sparse/index/bit_stream.h"
#include "sparse/index/encoding.h"
#include "src/core/error.h"

namespace espalier::sparse {
namespace {

struct Split {
  int low_bits = 0;
  std::span<const uint8_t> lows;
  std::span<const uint8_t> highs;
};

Split split(std::span<const uint8_t> data, int64_t kept, int low_bits) {
  const size_t lows = word_bytes(kept * low_bits);
  return {low_bits, data.first(lows), data.subspan(lows)};
}

size_t split_bytes(int64_t kept, int low_bits, int64_t zeros) {
  return word_bytes(kept * low_bits) + word_bytes(kept + zeros);
}

/// For each number in order fn(zeros, low): zeros of the unary part before its one, low part.
template <class Fn>
void for_each_number(const Split& numbers, Fn&& fn) {
  int64_t k = 0;
  for (size_t at = 0; at < numbers.highs.size(); at += sizeof(uint64_t)) {
    uint64_t word = load_word(numbers.highs, at);
    for (; word != 0; word &= word - 1, ++k) {
      const int64_t one = static_cast<int64_t>(at) * 8 + std::countr_zero(word);
      fn(one - k, load_bits(numbers.lows, k * numbers.low_bits) & low_mask(numbers.low_bits));
    }
  }
}

/// The ones of a byte: zeros[j] = zero bits below the j-th one.
struct ByteOnes {
  std::array<int32_t, 8> zeros;
  int32_t count;
};

constexpr std::array<ByteOnes, 256> kByteOnes = [] {
  std::array<ByteOnes, 256> all{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      if ((byte >> bit & 1) != 0) {
        all[byte].zeros[static_cast<size_t>(all[byte].count)] = bit - all[byte].count;
        ++all[byte].count;
      }
    }
  }
  return all;
}();

constexpr uint64_t kOnes16 = 0x0001000100010001U;

/// Numbers that are put together at once, a 16-bit lane each.
constexpr size_t kPiece = 128;
using Lanes = std::array<uint16_t, kPiece>;

void shift_and_add(std::span<int32_t> out, int bits, int32_t base, const Lanes& lanes) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = (out[i] << bits) + base + lanes[i];
  }
}

/// Four packed numbers to the four 16-bit lanes of a word: first two pairs, then the members of
/// each.
class Spread {
 public:
  explicit Spread(int bits)
      : bits_(bits), pair_(low_mask(2 * bits)), one_(low_mask(bits) * 0x0000000100000001U) {}
  uint64_t operator()(uint64_t packed) const {
    const uint64_t pairs = (packed & pair_) | (packed >> (2 * bits_) & pair_) << 32;
    return (pairs & one_) | (pairs >> bits_ & one_) << 16;
  }

 private:
  int bits_;
  uint64_t pair_, one_;
};

int32_t low_part(const Split& numbers, int64_t k) {
  return static_cast<int32_t>(load_bits(numbers.lows, k * numbers.low_bits) &
                              low_mask(numbers.low_bits));
}

/// fn(i, spread low parts of numbers first + i to first + i + 3) for i = 0, 4, ... up to `count` or
/// a little more; `first` is a multiple of 8, so eight numbers begin at a byte; they fill at most a
/// word.
template <class Fn>
void for_each_four(const Split& numbers, int64_t first, size_t count, Fn&& fn) {
  const int bits = numbers.low_bits;
  const Spread spread(bits);
  auto at = static_cast<size_t>(first / 8 * bits);
  for (size_t i = 0; i < count; i += 8, at += static_cast<size_t>(bits)) {
    const uint64_t eight = load_word(numbers.lows, at);
    fn(i, spread(eight));
    fn(i + 4, spread(eight >> (4 * bits)));
  }
}

/// Throws Failure unless the sizes fit, the unary part has `coded.kept` ones and at most
/// `most_zeros` zeros, and no bit is set in the padding.
void check_split(const Coded& coded, int low_bits, int64_t most_zeros) {
  const size_t lows = word_bytes(coded.kept * low_bits);
  const size_t least = split_bytes(coded.kept, low_bits, 0);
  const size_t most = split_bytes(coded.kept, low_bits, most_zeros);
  check(coded.data.size() >= least && coded.data.size() <= most && coded.data.size() % 8 == 0,
        "golomb index: {} bytes for {} of {} kept elements, there should be {} to {} in steps of 8",
        coded.data.size(), coded.kept, coded.size, least, most);
  check_words("golomb index, low parts", coded.data.first(lows), coded.kept * low_bits);
  const Split numbers = split(coded.data, coded.kept, low_bits);
  int64_t ones = 0;
  uint64_t word = 1;
  for (size_t at = 0; at < numbers.highs.size(); at += sizeof(word)) {
    word = load_word(numbers.highs, at);
    ones += count_ones({&word, 1});
  }
  check(ones == coded.kept, "golomb index: {} unary parts for {} kept elements", ones, coded.kept);
  check(word != 0, "golomb index: zero words follow the last unary part");
}

/// out[i] = zeros between bit `begin` and the i-th one from there on.
void read_zeros(std::span<const uint8_t> highs, int64_t begin, std::span<int32_t> out) {
  int32_t* next = out.data();
  int32_t* const end = next + out.size();
  auto at = static_cast<size_t>(begin / 8);
  uint32_t byte = highs[at] & ~((1U << (begin % 8)) - 1);
  auto zeros = static_cast<int32_t>(-(begin % 8));  // from `begin` to the byte's first bit
  while (end - next >= 8) {                         // any byte fits
    const ByteOnes& ones = kByteOnes[byte];
    std::array<int32_t, 8> eight =
        ones.zeros;  // a copy: it cannot overlap `next`, so is one vector
    for (int32_t& one : eight) {
      one += zeros;
    }
    std::memcpy(next, eight.data(), sizeof(eight));
    next += ones.count;
    zeros += 8 - ones.count;
    ++at;
    byte = at < highs.size() ? highs[at] : 0;
  }
  while (next != end) {
    const ByteOnes& ones = kByteOnes[byte];
    for (int32_t j = 0; j < ones.count && next != end; ++j) {
      *next++ = zeros + ones.zeros[static_cast<size_t>(j)];
    }
    zeros += 8 - ones.count;
    ++at;
    byte = at < highs.size() ? highs[at] : 0;
  }
}

/// out[i] = (out[i] << low_bits) + base + i + low parts of numbers first..first + i.
void add_low_sums(const Split& numbers, int64_t first, int32_t base, std::span<int32_t> out) {
  constexpr int kMaxBits = 8;  // the sum of kPiece lows and ones fits a lane
  const int bits = numbers.low_bits;
  if (bits > kMaxBits) {
    for (size_t i = 0; i < out.size(); ++i) {
      base += low_part(numbers, first + static_cast<int64_t>(i));
      out[i] = (out[i] << bits) + base++;
    }
    return;
  }
  for (size_t begin = 0; begin < out.size(); begin += kPiece) {
    const auto piece = out.subspan(begin, std::min(kPiece, out.size() - begin));
    Lanes lanes;
    uint64_t before = 0;  // in each lane, the sum of the lows and ones so far
    for_each_four(numbers, first + static_cast<int64_t>(begin), piece.size(),
                  [&](size_t i, uint64_t four) {
                    // One multiplication makes all four sums.
                    const uint64_t sums = (four + kOnes16) * kOnes16;
                    const uint64_t all = sums + before;
                    std::memcpy(&lanes[i], &all, sizeof(all));
                    before += (sums >> 48) * kOnes16;
                  });
    shift_and_add(piece, bits, base - 1, lanes);
    base += static_cast<int32_t>(before >> 48);
  }
}

using Chunk = std::array<int32_t, kDecodeChunk>;

/// Where reading can start: before kept element kDecodeChunk * j, which lies at or above `base`
/// and whose unary part begins at bit `high`.
struct Restart {
  uint32_t base;
  uint32_t high;
};

std::span<const Restart> restarts(const Coded& coded) {
  return {reinterpret_cast<const Restart*>(coded.prefix_counts.data()),
          coded.prefix_counts.size() / 2};
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

int64_t prefix_counts_size(const Counts& counts) {
  return 2 * ((counts.kept + kDecodeChunk - 1) / kDecodeChunk);
}

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

void check_sizes(const Coded& coded) {
  const int bits = low_bits(coded.size, coded.kept);
  check_split(coded, bits, coded.size >> bits);
}

/// After check_sizes. Calls fn(position) for each kept element, ascending; positions beyond the
/// size are an error afterwards.
template <class Fn>
void check_each(const Coded& coded, const Fn& fn) {
  const int bits = low_bits(coded.size, coded.kept);
  int64_t end = 0;
  int64_t zeros_before = 0;
  for_each_number(split(coded.data, coded.kept, bits), [&](int64_t zeros, uint64_t low) {
    end += ((zeros - zeros_before) << bits) + static_cast<int64_t>(low) + 1;
    zeros_before = zeros;
    fn(end - 1);
  });
  check(end <= coded.size, "golomb index: the last kept element lies at {}, beyond the size {}",
        end - 1, coded.size);
}

void check_data(const Coded& coded) {
  check_sizes(coded);
  check_each(coded, [](int64_t /*position*/) {});
}

Mask checked_mask(const Coded& coded) {
  check_sizes(coded);
  std::vector<uint64_t> words(static_cast<size_t>(bitmap_coding::word_count(coded.size)));
  check_each(coded, [&](int64_t position) {
    if (position < coded.size) {
      words[static_cast<size_t>(position) / 64] |= uint64_t{1} << (position % 64);
    }
  });
  return Mask::from_words(coded.size, words);
}

void build_prefix_counts(const Coded& coded, std::span<uint32_t> prefix_counts) {
  const int bits = low_bits(coded.size, coded.kept);
  int64_t k = 0;
  int64_t low_sum = 0;
  int64_t zeros_before = 0;
  for_each_number(split(coded.data, coded.kept, bits), [&](int64_t zeros, uint64_t low) {
    if (k % kDecodeChunk == 0) {
      prefix_counts[static_cast<size_t>(k / kDecodeChunk * 2)] =
          static_cast<uint32_t>((zeros_before << bits) + low_sum + k);
      prefix_counts[static_cast<size_t>(k / kDecodeChunk * 2 + 1)] =
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
  add_low_sums(numbers, j * kDecodeChunk, static_cast<int32_t>(start.base), out);
}

void decode(const Coded& coded, int64_t first, std::span<int32_t> out) {
  Chunk chunk;
  for (auto done = size_t{0}; done < out.size();) {
    const int64_t at = first + static_cast<int64_t>(done);
    const auto skip = static_cast<size_t>(at % kDecodeChunk);
    const size_t count = std::min(out.size() - done, static_cast<size_t>(kDecodeChunk) - skip);
    if (skip == 0) {
      decode_from(coded, at / kDecodeChunk, out.subspan(done, count));
    } else {
      decode_from(coded, at / kDecodeChunk, std::span(chunk).first(skip + count));
      std::copy_n(chunk.begin() + static_cast<int64_t>(skip), count,
                  out.begin() + static_cast<int64_t>(done));
    }
    done += count;
  }
}

int64_t kept_before(const Coded& coded, int64_t dense) {
  const auto all = restarts(coded);
  const auto next = std::ranges::upper_bound(all, dense, std::less<>(),
                                             [](const Restart& r) { return int64_t{r.base}; });
  // All elements before a restart lie below its base: the last base <= dense loses none of them.
  const int64_t j = std::max<int64_t>(next - all.begin() - 1, 0);
  const int64_t begin = j * kDecodeChunk;
  Chunk chunk;
  const auto part =
      std::span(chunk).first(static_cast<size_t>(std::min(coded.kept - begin, kDecodeChunk)));
  decode_from(coded, j, part);
  return begin + (std::ranges::lower_bound(part, dense) - part.begin());
}

constexpr Coding kCoding{.exact_bytes = exact_bytes,
                         .expected_bytes = expected_bytes,
                         .prefix_counts_size = prefix_counts_size,
                         .encode = encode,
                         .check = check_data,
                         .build_prefix_counts = build_prefix_counts,
                         .checked_mask = checked_mask,
                         .decode = decode,
                         .kept_before = kept_before};

}  // namespace

constinit const Encoding Encoding::golomb{
    .name = "golomb",
    .help = "Rice code of gaps, within 4 % of the entropy below f = 0.4",
    .coding = &kCoding};

}  // namespace espalier::sparse
