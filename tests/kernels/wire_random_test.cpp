// Random rounding of wire codes: unbiased, and a function of key and element alone.
#include <gtest/gtest.h>

#include "tests/kernels/wire_case.h"

namespace espalier::kernels::wire_random_test {
namespace {

std::vector<WireFormat> random_formats(int64_t bucket) {
  std::vector<WireFormat> formats = all_formats({bucket});
  std::erase_if(formats, [](const WireFormat& f) {
    return !codec_of(f.code).random || codec_of(f.code).form != WireForm::codes;
  });
  return formats;
}

/// Each `every`-th value of y is one of the two neighbours of x; their mean is x, within five
/// deviations and 1/10,000 of the step.
void expect_mean(WireCode code, double x, Values around, const float* y, size_t count,
                 size_t every) {
  std::sort(around.begin(), around.end());
  const auto above = std::lower_bound(around.begin(), around.end(), x);
  const double high = above == around.end() ? around.back() : *above;
  const double low = above == around.begin() || high == x ? high : *(above - 1);
  // The rounding unit is that of least + unit level for maxmin, and that of the value for all
  // others.
  const bool sum_of_two = code == WireCode::maxmin;
  const double rounding =
      1e-6 * (sum_of_two ? around.back() : std::max(std::fabs(low), std::fabs(high)));
  double sum = 0;
  for (size_t k = 0; k < count; ++k) {
    const double value = y[k * every];
    ASSERT_TRUE(std::fabs(value - low) <= rounding || std::fabs(value - high) <= rounding) << value;
    sum += value - x;
  }
  const auto repeats = static_cast<double>(count);
  const double share = high > low ? (x - low) / (high - low) : 0;
  const double deviation = (high - low) * std::sqrt(share * (1 - share) / repeats);
  EXPECT_LE(std::fabs(sum / repeats), 5 * deviation + 1e-4 * (high - low) + rounding);
}

TEST(WireRandom, random_rounding_keeps_the_mean) {
  constexpr size_t kValues = 64;
  constexpr size_t kRepeats = 4000;
  Floats values = normal_numbers(kValues / 2, 10, 0.2F);
  const Floats small = wide_numbers(kValues / 2, 11, 6);
  values.insert(values.end(), small.begin(), small.end());
  values[3] = 1.2F;  // the largest; -1 is not in the map of bitsandbytes
  for (size_t i = 33; i < kValues; i += 3) {
    values[i] *= 3e-5F;  // subnormal numbers of fp8
  }
  Floats x;
  for (size_t i = 0; i < kRepeats; ++i) {
    x.insert(x.end(), values.begin(), values.end());
  }
  for (const WireFormat& format : random_formats(0)) {
    const Bytes wire = encode(first_table(), format, x, {.key = 77});
    const Floats y = decode(first_table(), format, wire, x.size());
    Values around = reference::values(format, wire.data());
    std::erase_if(around, [](double value) { return !std::isfinite(value); });
    for (size_t i = 0; i < kValues; ++i) {
      SCOPED_TRACE(fmt::format("{} {}", text(format), values[i]));
      expect_mean(format.code, values[i], around, y.data() + i, kRepeats, kValues);
    }
  }
}

/// Mean over keys of |y - x|² / |x|², and |mean of y - x|² / |x|².
struct RotationErrors {
  double one = 0, mean = 0;
};
RotationErrors errors_of(const WireFormat& format, const Floats& x, uint64_t keys) {
  Values sum(x.size());
  double squares = 0;
  RotationErrors found;
  for (uint64_t key = 1; key <= keys; ++key) {
    const Kernels& table = first_table();
    const Floats y = decode(table, format, encode(table, format, x, {.key = key}), x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const double error = double{y[i]} - x[i];
      sum[i] += error;
      found.one += error * error;
      squares += key == 1 ? double{x[i]} * x[i] : 0;
    }
  }
  for (const double error : sum) {
    found.mean += error * error;
  }
  const auto n = static_cast<double>(keys);
  return {found.one / n / squares, found.mean / n / n / squares};
}

/// Errors equal the paper's, and the mean over rotations has no error.
TEST(WireRandom, eden_is_unbiased_and_has_the_errors_of_its_paper) {
  constexpr double kExpected[] = {0.5708, 0.1331, 0.03578, 0.009592};
  constexpr uint64_t kKeys = 200;
  for (const Floats& x : {normal_numbers(4096, 15, 1e-3F), wide_numbers(4096, 16, 6)}) {
    for (int bits = 1; bits <= 4; ++bits) {
      const WireFormat format = wire_format(WireCode::eden, 4096, bits);
      const RotationErrors errors = errors_of(format, x, kKeys);
      SCOPED_TRACE(fmt::format("{} bits: {}, mean {}", bits, errors.one, errors.mean));
      const double expected = kExpected[bits - 1];
      EXPECT_NEAR(errors.one, expected, 0.05 * expected);
      EXPECT_NEAR(errors.mean * kKeys / errors.one, 1, 0.1);
    }
  }
}

TEST(WireRandom, random_rounding_is_a_function_of_key_and_element) {
  const Floats x = normal_numbers(6400, 12);
  const Kernels& table = first_table();
  for (const WireFormat& format : random_formats(64)) {
    const Floats whole = decode(table, format, encode(table, format, x, {.key = 9}), x.size());
    const Floats other = decode(table, format, encode(table, format, x, {.key = 10}), x.size());
    EXPECT_NE(whole, other) << text(format);
    const Floats tail(x.begin() + 64, x.end());
    const Bytes cut = encode(table, format, tail, {.key = 9, .first = 64});
    EXPECT_EQ(decode(table, format, cut, tail.size()), Floats(whole.begin() + 64, whole.end()))
        << text(format);
  }
  for (const WireFormat& format : all_formats({64})) {
    const Bytes nearest = encode(table, format, x);
    const bool drawn = codec_of(format.code).random;
    EXPECT_EQ(encode(table, format, x, {.key = 9}) != nearest, drawn) << text(format);
  }
}

}  // namespace
}  // namespace espalier::kernels::wire_random_test
