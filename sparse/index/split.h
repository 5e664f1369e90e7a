#pragma once
// Numbers cut in two: the low bits of all of them packed, then the high parts in unary (so many
// zeros, then a one), each filled up with zeros to words. Private to this layer.
//
// The i-th one of the unary part, at bit b, says that the high parts of numbers 0..i sum up to
// b - i: for gaps (Golomb) the sum is what is wanted, for positions (Elias-Fano) their differences
// are stored. Low parts lie at fixed places, so both are read without a branch a number.
#include "sparse/index/bit_stream.h"
#include "sparse/index/codings.h"

namespace espalier::sparse {

struct Split {
  int low_bits = 0;
  std::span<const uint8_t> lows;
  std::span<const uint8_t> highs;
};

/// `data` of `kept` numbers.
Split split(std::span<const uint8_t> data, int64_t kept, int low_bits);
size_t split_bytes(int64_t kept, int low_bits, int64_t zeros);

/// Throws Failure unless the sizes fit, the unary part has `coded.kept` ones and at most
/// `most_zeros` zeros, and no bit is set in the padding. `name` begins the message.
void check_split(std::string_view name, const Coded& coded, int low_bits, int64_t most_zeros);

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

/// out[i] = zeros between bit `begin` and the i-th one from there on.
void read_zeros(std::span<const uint8_t> highs, int64_t begin, std::span<int32_t> out);

/// out[i] = (out[i] << low_bits) + base + low part of number first + i.
void add_lows(const Split& numbers, int64_t first, int32_t base, std::span<int32_t> out);
/// out[i] = (out[i] << low_bits) + base + i + low parts of numbers first..first + i.
void add_low_sums(const Split& numbers, int64_t first, int32_t base, std::span<int32_t> out);

}  // namespace espalier::sparse
