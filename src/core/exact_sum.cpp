#include "src/core/exact_sum.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "src/core/error.h"

namespace espalier {
namespace {

constexpr uint64_t kLow = 0xffffffffU;
constexpr unsigned kMantissaBits = 52;
constexpr uint64_t kHidden = uint64_t{1} << kMantissaBits;

/// Bits to OR for a non-finite value: the bits of infinity are a subset of those of NaN.
uint64_t bits_of(double not_finite) {
  constexpr uint64_t kInfinite = uint64_t{0x7ff} << kMantissaBits;
  if (not_finite == 0) {
    return 0;
  }
  return std::isnan(not_finite) ? kInfinite | (kHidden >> 1U) : kInfinite;
}

}  // namespace

void ExactSum::add(double x) {
  require(!(x < 0), "only numbers >= 0 are added", x);
  if (!std::isfinite(x)) {
    not_finite_ += x;
    return;
  }
  const auto bits = std::bit_cast<uint64_t>(std::fabs(x));
  const uint64_t exponent = bits >> kMantissaBits;
  const uint64_t mantissa = (bits & (kHidden - 1)) | (exponent > 0 ? kHidden : 0);
  const uint64_t shift = exponent > 0 ? exponent - 1 : 0;
  const uint64_t lower = (mantissa & kLow) << (shift % 32);
  const uint64_t upper = (mantissa >> 32U) << (shift % 32);
  uint64_t* digit = digits_.data() + shift / 32;
  digit[0] += lower & kLow;
  digit[1] += (lower >> 32U) + (upper & kLow);
  digit[2] += upper >> 32U;
  if (++added_ == int64_t{1} << 30U) {  // each addition adds less than 2^33 to a digit
    carry();
  }
}

void ExactSum::add_to(std::span<uint64_t, kWords> counts) const {
  for (size_t i = 0; i < kDigits; ++i) {
    if (digits_.at(i) > 0) {
      std::atomic_ref(counts[i]).fetch_add(digits_.at(i), std::memory_order_relaxed);
    }
  }
  std::atomic_ref(counts.back()).fetch_or(bits_of(not_finite_), std::memory_order_relaxed);
}

ExactSum ExactSum::of(std::span<const uint64_t, kWords> counts) {
  ExactSum sum;
  std::ranges::copy(counts.first<kDigits>(), sum.digits_.begin());
  sum.not_finite_ = std::bit_cast<double>(counts.back());
  sum.carry();
  return sum;
}

void ExactSum::carry() {
  uint64_t over = 0;
  for (uint64_t& digit : digits_) {
    digit += over;
    over = digit >> 32U;
    digit &= kLow;
  }
  added_ = 0;
  if (over > 0) {
    not_finite_ += HUGE_VAL;
  }
}

std::array<double, ExactSum::kWords> ExactSum::words() const {
  ExactSum sum = *this;
  sum.carry();
  std::array<double, kWords> words{};
  for (size_t i = 0; i < kDigits; ++i) {
    words.at(i) = static_cast<double>(sum.digits_.at(i));
  }
  words.back() = sum.not_finite_;
  return words;
}

ExactSum ExactSum::of(std::span<const double, kWords> words) {
  ExactSum sum;
  sum.not_finite_ = words.back();
  for (size_t i = 0; i < kDigits; ++i) {
    // NaN must propagate in sums over ranks, but one rank's words hold it in the last word only.
    sum.digits_.at(i) = static_cast<uint64_t>(words[i]);
  }
  sum.carry();
  return sum;
}

double ExactSum::value() const {
  std::array<uint64_t, kWords> counts{};
  add_to(counts);
  return value_of(counts.data());
}

}  // namespace espalier
