#include "sparse/index/split.h"

#include <algorithm>
#include <array>

#include "src/core/error.h"

namespace espalier::sparse {
namespace {

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
  static constexpr int kMostBits = 14;  // four of them lie within one load
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
/// a little more; `first` is a multiple of 8.
template <class Fn>
void for_each_four(const Split& numbers, int64_t first, size_t count, Fn&& fn) {
  const int bits = numbers.low_bits;
  const Spread spread(bits);
  if (bits <= 8) {  // eight numbers begin at a byte and fill at most a word
    auto at = static_cast<size_t>(first / 8 * bits);
    for (size_t i = 0; i < count; i += 8, at += static_cast<size_t>(bits)) {
      const uint64_t eight = load_word(numbers.lows, at);
      fn(i, spread(eight));
      fn(i + 4, spread(eight >> (4 * bits)));
    }
    return;
  }
  for (size_t i = 0; i < count; i += 4) {
    fn(i, spread(load_bits(numbers.lows, (first + static_cast<int64_t>(i)) * bits)));
  }
}

}  // namespace

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
  auto at = static_cast<size_t>(begin / 8);
  uint32_t byte = highs[at] & ~((1U << (begin % 8)) - 1);
  auto zeros = static_cast<int32_t>(-(begin % 8));  // from `begin` to the byte's first bit
  while (end - next >= 8) {                         // room for any byte
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

void add_lows(const Split& numbers, int64_t first, int32_t base, std::span<int32_t> out) {
  const int bits = numbers.low_bits;
  if (bits > Spread::kMostBits) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = (out[i] << bits) + base + low_part(numbers, first + static_cast<int64_t>(i));
    }
    return;
  }
  for (size_t begin = 0; begin < out.size(); begin += kPiece) {
    const auto piece = out.subspan(begin, std::min(kPiece, out.size() - begin));
    Lanes lanes;
    for_each_four(numbers, first + static_cast<int64_t>(begin), piece.size(),
                  [&](size_t i, uint64_t four) { std::memcpy(&lanes[i], &four, sizeof(four)); });
    shift_and_add(piece, bits, base, lanes);
  }
}

void add_low_sums(const Split& numbers, int64_t first, int32_t base, std::span<int32_t> out) {
  constexpr int kMostBits = 8;  // the sum of kPiece lows and ones fits a lane
  const int bits = numbers.low_bits;
  if (bits > kMostBits) {
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

}  // namespace espalier::sparse
