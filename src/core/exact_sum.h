#pragma once
// Sums of numbers >= 0 that do not depend on their order, nor on who adds which of them.
//
// The sum is an integer of kDigits digits in base 2^32, in units of 2^-kBias, the smallest double:
// so wide that nothing is rounded before `value` (one rounding a digit, the same for equal sums).
// Adding a number costs some ten instructions: its 53 bits, shifted, fall on three digits that
// follow each other, and what it adds to a digit is below 2^33. A digit is counted in 64 bits, so
// 2^31 numbers may be added before carries have to go up, by many threads at once (`add_to`;
// kernels of a device do the same: kernels.h, SumSquaresArgs). With carries done, digits are whole
// numbers below 2^32 that a double holds exactly: the digits of up to 2^21 sums may be added as
// doubles, in any order. Source: Kulisch, "Computer Arithmetic and Validity", 2013, section 8 (long
// accumulators).
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <span>

namespace espalier {

class ExactSum {
 public:
  static constexpr int kBias = 1074;
  static constexpr int kDigits = 70;
  static constexpr int kWords = kDigits + 1;

  /// x >= 0; an infinity or NaN makes the sum one, too.
  void add(double x);
  /// Digits, and 0 or what is not finite: they may be added to the words of another sum.
  std::array<double, kWords> words() const;
  static ExactSum of(std::span<const double, kWords> words);
  double value() const;

  /// Counts of digits, carries not done, and the bits of 0 or of what is not finite: digits are
  /// added to others, bits are ORed. Other threads may add to `counts` at the same time.
  void add_to(std::span<uint64_t, kWords> counts) const;
  static ExactSum of(std::span<const uint64_t, kWords> counts);
  /// The value of kWords counts. Plain arithmetic, for kernels too: a digit times its unit is
  /// exact, so that it makes no difference whether a compiler fuses it with the addition.
  static constexpr double value_of(const uint64_t* counts) {
    double value = 0;
    double unit = 0x1p-1074;  // of the digit; beyond 2^1023 infinite, as what it stands for
    uint64_t over = 0;
    for (int i = 0; i < kDigits; ++i) {
      const uint64_t digit = counts[i] + over;
      const uint64_t low = digit & 0xffffffffU;
      over = digit >> 32U;
      if (low > 0) {
        value += static_cast<double>(low) * unit;
      }
      unit *= 0x1p32;
    }
    const double not_finite =
        over > 0 ? std::numeric_limits<double>::infinity() : std::bit_cast<double>(counts[kDigits]);
    return not_finite == 0 ? value : not_finite;
  }

 private:
  void carry();

  std::array<uint64_t, kDigits> digits_{};  ///< the lowest first; carries wait in the upper halves
  int64_t added_ = 0;                       ///< since the last carry
  double not_finite_ = 0;
};

}  // namespace espalier
