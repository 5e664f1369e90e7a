#include "src/core/exact_sum.h"

#include <cmath>

#include "src/core/error.h"

namespace espalier {
namespace {

constexpr uint64_t kLow = 0xffffffffU;
constexpr int kMantissa = 53;

}  // namespace

void ExactSum::add(double x) {
  require(!(x < 0), "only numbers >= 0 are added", x);
  if (!std::isfinite(x)) {
    not_finite_ += x;
    return;
  }
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);
  if (fraction == 0) {
    return;
  }
  const auto mantissa = static_cast<uint64_t>(std::ldexp(fraction, kMantissa));
  const auto shift = static_cast<size_t>(exponent - kMantissa + kBias);
  const uint64_t lower = (mantissa & kLow) << (shift % 32);
  const uint64_t upper = (mantissa >> 32U) << (shift % 32);
  uint64_t* digit = digits_.data() + shift / 32;
  digit[0] += lower & kLow;
  digit[1] += (lower >> 32U) + (upper & kLow);
  digit[2] += upper >> 32U;
  if (++added_ == int64_t{1} << 30U) {  // a digit gets less than 2^33 at a time
    carry();
  }
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
    // NaN is contagious in sums over ranks, and in one rank's words it is the last one only.
    sum.digits_.at(i) = static_cast<uint64_t>(words[i]);
  }
  sum.carry();
  return sum;
}

double ExactSum::value() const {
  ExactSum sum = *this;
  sum.carry();
  double value = 0;
  for (size_t i = 0; i < kDigits; ++i) {
    value += std::ldexp(static_cast<double>(sum.digits_.at(i)), static_cast<int>(32 * i) - kBias);
  }
  return sum.not_finite_ == 0 ? value : sum.not_finite_;
}

}  // namespace espalier
