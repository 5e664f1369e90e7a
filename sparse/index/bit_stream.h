#pragma once
// Bits in bytes, the lowest of the first byte first; private to this layer. Readers may start at
// any bit and never touch a byte beyond the span; bits beyond it read as zero.
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>

namespace espalier::sparse {

static_assert(std::endian::native == std::endian::little, "words are stored little end first");

inline constexpr uint64_t low_mask(int bits) {
  return bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
}

/// Bytes of the 64-bit words that hold `bits`.
inline constexpr size_t word_bytes(int64_t bits) {
  return static_cast<size_t>((bits + 63) / 64) * 8;
}

/// The 64-bit word whose first byte is byte `at`.
inline uint64_t load_word(std::span<const uint8_t> bytes, size_t at) {
  uint64_t word = 0;
  if (at + sizeof(word) <= bytes.size()) [[likely]] {
    std::memcpy(&word, bytes.data() + at, sizeof(word));
  } else if (at < bytes.size()) {
    std::memcpy(&word, bytes.data() + at, bytes.size() - at);
  }
  return word;
}

/// At least 57 bits from bit `at` on, in the low end of the result.
inline uint64_t load_bits(std::span<const uint8_t> bytes, int64_t at) {
  return load_word(bytes, static_cast<size_t>(at >> 3)) >> (at & 7);
}

/// Appends numbers to zeroed bytes whose size is a multiple of 8.
class BitWriter {
 public:
  explicit BitWriter(std::span<uint8_t> bytes) : bytes_(bytes) {}

  /// `value` < 2^bits, bits <= 57.
  void put(uint64_t value, int bits) {
    word_ |= value << used_;
    used_ += bits;
    if (used_ >= 64) {
      flush();
      used_ -= 64;
      word_ = value >> (bits - used_);
    }
  }
  /// `zeros` zero bits, then a one.
  void put_unary(int64_t zeros) {
    for (; zeros >= 56; zeros -= 56) {
      put(0, 56);
    }
    put(uint64_t{1} << zeros, static_cast<int>(zeros) + 1);
  }
  /// Writes the pending bits.
  void finish() {
    if (used_ > 0) {
      flush();
    }
  }

 private:
  void flush() {
    std::memcpy(bytes_.data() + at_, &word_, sizeof(word_));
    at_ += sizeof(word_);
  }

  std::span<uint8_t> bytes_;
  size_t at_ = 0;
  uint64_t word_ = 0;
  int used_ = 0;
};

}  // namespace espalier::sparse
