#pragma once
// Sums of numbers >= 0, independent of the order of additions and of their distribution over ranks
// and threads.
//
// The sum is an integer of kDigits digits in base 2^32, in units of 2^-kBias (the smallest double).
// Only `value` rounds: once a digit, the same for equal sums.
//   add      some ten instructions: the 53 bits of a number, shifted, fall on three consecutive
//            digits, and each of these grows by less than 2^33
//   carries  a digit has 64 bits, so 2^31 numbers may be added before carries propagate. Many
//            threads may add at once (`add_to`; device kernels do the same: kernels.h,
//            SumSquaresArgs)
//   words    after carries, digits are integers below 2^32, exact as doubles: digits of up to 2^21
//            sums may be added as doubles, in any order
// Source: Kulisch, "Computer Arithmetic and Validity", 2013, section 8 (long accumulators).
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

  /// x >= 0. An infinity or NaN makes the sum infinite or NaN.
  void add(double x);
  /// The digits, then 0 or the non-finite value; may be added to the words of another sum.
  std::array<double, kWords> words() const;
  static ExactSum of(std::span<const double, kWords> words);
  double value() const;

  /// Adds the digits, before carries, to `counts`, and ORs the bits of 0 or of the non-finite
  /// value. Other threads may add to `counts` at the same time.
  void add_to(std::span<uint64_t, kWords> counts) const;
  static ExactSum of(std::span<const uint64_t, kWords> counts);
  /// The value of kWords counts. Plain arithmetic, so kernels may call it. A digit times its unit
  /// is exact; so fusing it with the addition does not change the result.
  static constexpr double value_of(const uint64_t* counts) {
    double value = 0;
    double unit = 0x1p-1074;  // of the digit; infinite beyond 2^1023, like the value
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

  std::array<uint64_t, kDigits> digits_{};  ///< lowest first; upper halves collect carries
  int64_t added_ = 0;                       ///< since the last carry
  double not_finite_ = 0;
};

}  // namespace espalier
