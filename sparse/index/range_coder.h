#pragma once
// Binary arithmetic code: a run of bits, each with a probability that encoder and decoder both
// know, takes the sum of their -log2 in bits (and at most one byte more). Private to this layer.
//
// The code is a number in [low, low + range) of an interval that each bit divides; 64 bits of it
// are at hand, the upper 32 leave when range < 2^32. The end is the shortest number of bytes that,
// followed by zeros, lies in the interval: so one run of bits has one code.
// Source: Martin, "Range encoding", 1979; carry into bytes already written as in Schindler, 1998.
#include <cstdint>
#include <span>
#include <vector>

#include "sparse/index/bit_stream.h"
#include "src/core/error.h"

namespace espalier::sparse {

/// Probabilities are in units of 2^-kProbabilityBits, from 1 to 2^kProbabilityBits - 1.
inline constexpr int kProbabilityBits = 20;

/// The part of the last interval that goes into a file.
struct CodeEnd {
  uint64_t value;
  int bytes;
};
inline CodeEnd shortest_in(uint64_t low, uint64_t range) {
  for (int bytes = 0; bytes < 8; ++bytes) {
    const uint64_t rest = ~uint64_t{0} >> (8 * bytes);
    const uint64_t up = (0 - low) & rest;  // from low to the next value with zeros below
    if (up < range) {
      return {low + up, bytes};
    }
  }
  return {low, 8};
}

class RangeEncoder {
 public:
  /// `one`: probability that `bit` is set.
  void put(bool bit, uint32_t one) {
    const uint64_t bound = (range_ >> kProbabilityBits) * one;
    if (bit) {
      range_ = bound;
    } else {
      low_ += bound;
      if (low_ < bound) {
        carry();
      }
      range_ -= bound;
    }
    if (range_ <= 0xffffffffU) {
      emit(4);
      range_ <<= 32;
    }
  }
  std::vector<uint8_t> finish() {
    const CodeEnd end = shortest_in(low_, range_);
    if (end.value < low_) {
      carry();
    }
    low_ = end.value;
    emit(end.bytes);
    return std::move(bytes_);
  }

 private:
  /// Takes the upper `count` bytes off, high ones first.
  void emit(int count) {
    for (int i = 0; i < count; ++i) {
      bytes_.push_back(static_cast<uint8_t>(low_ >> 56));
      low_ <<= 8;
    }
  }
  void carry() {
    for (size_t i = bytes_.size(); i-- > 0 && ++bytes_[i] == 0;) {
    }
  }

  uint64_t low_ = 0;
  uint64_t range_ = ~uint64_t{0};
  std::vector<uint8_t> bytes_;
};

/// Throws Failure that begins with `what` when the bytes are no code.
class RangeDecoder {
 public:
  RangeDecoder(std::span<const uint8_t> bytes, std::string_view what) : bytes_(bytes), what_(what) {
    code_ = next(8);
  }
  bool get(uint32_t one) {
    const uint64_t bound = (range_ >> kProbabilityBits) * one;
    const bool bit = code_ < bound;
    if (bit) {
      range_ = bound;
    } else {
      code_ -= bound;
      range_ -= bound;
    }
    if (range_ <= 0xffffffffU) {
      taken_ += 4;
      check(taken_ <= bytes_.size(), "{}: the bytes end too early", what_);
      code_ = (code_ << 32) | next(4);
      range_ <<= 32;
    }
    return bit;
  }
  /// The bytes must be those that the encoder would have ended with.
  void finish() const {
    // code = value - low, so low is known again.
    const uint64_t value = big_end(taken_, 8);
    const CodeEnd end = shortest_in(value - code_, range_);
    check(bytes_.size() == taken_ + static_cast<size_t>(end.bytes) && value == end.value,
          "{}: {} bytes, the code has {} or ends otherwise", what_, bytes_.size(),
          taken_ + static_cast<size_t>(end.bytes));
  }

 private:
  /// Bytes [at, at + count) as a number, high ones first; zeros beyond the end.
  uint64_t big_end(size_t at, int count) const {
    uint64_t value = 0;
    for (int i = 0; i < count; ++i) {
      const size_t byte = at + static_cast<size_t>(i);
      value = value << 8 | (byte < bytes_.size() ? bytes_[byte] : 0);
    }
    return value;
  }
  uint64_t next(int count) {
    const uint64_t value = big_end(read_, count);
    read_ += static_cast<size_t>(count);
    return value;
  }

  std::span<const uint8_t> bytes_;
  std::string_view what_;
  size_t taken_ = 0;  ///< bytes that have left the interval
  size_t read_ = 0;
  uint64_t code_ = 0;
  uint64_t range_ = ~uint64_t{0};
};

}  // namespace espalier::sparse
