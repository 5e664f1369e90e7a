// Special numbers through every wire code: zeros, constants, NaN and infinities, the smallest and
// the largest; bytes that no encoder produces. All tables produce the same bytes and values
// (wire_tables_test.cpp).
#include <gtest/gtest.h>

#include "src/kernels/backend.h"
#include "tests/kernels/wire_case.h"

namespace espalier::kernels::wire_special_test {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();

/// body(format)
template <class Body>
void for_all(const std::vector<int64_t>& buckets, const Body& body) {
  for (const WireFormat& format : all_formats(buckets)) {
    SCOPED_TRACE(text(format));
    body(format);
    if (::testing::Test::HasFatalFailure()) {
      return;
    }
  }
}

Floats sent(const WireFormat& format, const Floats& x) {
  return decode(first_table(), format, encode(first_table(), format, x), x.size());
}

TEST(WireSpecial, zeros_stay_zeros) {
  for_all({0, 64, 100}, [](const WireFormat& format) {
    Floats x(1003, 0.0F);
    x[5] = x[700] = -0.0F;
    for (const float value : sent(format, x)) {
      ASSERT_EQ(value, 0);
    }
    if (format.bucket == 100) {  // one bucket of zeros among others
      Floats some = normal_numbers(1003, 1);
      std::fill(some.begin() + 300, some.begin() + 400, 0.0F);
      const Floats y = sent(format, some);
      ASSERT_EQ(Floats(y.begin() + 300, y.begin() + 400), Floats(100, 0.0F));
    }
  });
}

TEST(WireSpecial, constants_stay_what_they_are) {
  for (const float constant : {1.0F, -3.25F, 1e-40F, -2e38F}) {
    for_all({0, 100}, [=](const WireFormat& format) {
      const bool exact = format.code == WireCode::maxmin
                             ? !format.half_meta || std::fabs(std::fabs(constant) - 2) <= 1.25F
                             : format.code == WireCode::linear8 || format.code == WireCode::table ||
                                   format.code == WireCode::fp32 || format.code == WireCode::sign ||
                                   format.code == WireCode::dynamic8;
      for (const float value : sent(format, Floats(333, constant))) {
        ASSERT_TRUE(!exact || value == constant) << value << " instead of " << constant;
      }
    });
  }
}

TEST(WireSpecial, a_bucket_with_nan_or_infinity_is_nan) {
  for_all({100}, [](const WireFormat& format) {
    const Floats clean = normal_numbers(1003, 2);
    const Floats want = sent(format, clean);
    for (const float odd : {kInf, -kInf, kNan, -kNan}) {
      for (const size_t place : {size_t{500}, size_t{567}, size_t{599}, size_t{1002}}) {
        Floats x = clean;
        x[place] = odd;
        const Floats y = sent(format, x);
        const bool plain = format.code <= WireCode::fp16;
        for (size_t i = 0; i < x.size(); ++i) {
          if (plain ? i == place : i / 100 == place / 100) {
            ASSERT_TRUE(plain && !std::isnan(odd) ? y[i] == odd : std::isnan(y[i])) << i;
          } else {
            ASSERT_EQ(y[i], want[i]) << i;
          }
        }
      }
    }
  });
}

/// Bound on the error of a value, relative to the bucket's largest value.
double bound(const WireFormat& format) {
  switch (format.code) {
    case WireCode::fp8_e5m2:
    case WireCode::fp8_e4m3:  // near the largest float numbers are cut off an eighth below
      return 0.126;
    case WireCode::dynamic8:
    case WireCode::dynamic8_bnb:
      return 0.0087;
    case WireCode::static8:
    case WireCode::mantissa8:
      return 0.2;
    case WireCode::linear8:
      return 0.5 / 127 + 1e-6;
    case WireCode::maxmin:
      return 1.0 / ((1 << format.bits) - 1) + 1e-6;
    case WireCode::bf16:
      return 0x1p-8;
    case WireCode::eden:  // errors are spread over the bucket
      return 4;
    default:
      return 1;
  }
}

void expect_bound(const WireFormat& format, const Floats& x, const Floats& y) {
  double most = 0;
  for (const float value : x) {
    most = std::max(most, std::fabs(static_cast<double>(value)));
  }
  const bool powers = format.code == WireCode::static8 || format.code == WireCode::mantissa8;
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_TRUE(std::isfinite(y[i])) << x[i];
    const bool cut = powers && std::fabs(x[i]) > 0.96e38F;
    const double allowed = bound(format) * most + (powers ? 1e-44 : 0x1p-149);
    ASSERT_TRUE(cut || std::fabs(static_cast<double>(y[i]) - x[i]) <= allowed)
        << x[i] << " became " << y[i];
  }
}

TEST(WireSpecial, any_finite_numbers_keep_the_bound) {
  std::vector<Floats> sets{Floats(1000),
                           normal_numbers(1000, 4, 1e-40F),
                           normal_numbers(1000, 5, 1e-38F),
                           normal_numbers(1000, 6, 3e37F),
                           normal_numbers(1000, 7, 1e-20F),
                           normal_numbers(1000, 8, 1e20F)};
  for (size_t i = 0; i < 1000; ++i) {
    sets[0][i] = static_cast<float>(static_cast<int>(i) - 500) * 0x1p-149F;
  }
  for (const float most : {kLargest, 0.7F * kLargest, 0x1p127F}) {
    sets.push_back(wide_numbers(1000, 9, 3));
    for (float& value : sets.back()) {
      value *= most;
    }
    sets.back()[3] = most;
    sets.push_back(sets.back());
    sets.back()[4] = -most;
  }
  for_all({0, 100}, [&](const WireFormat& format) {
    if (format.code == WireCode::fp16 || format.half_meta || format.code == WireCode::bf16) {
      return;  // other ranges are tested below
    }
    for (const Floats& x : sets) {
      expect_bound(format, x, sent(format, x));
    }
  });
}

TEST(WireSpecial, what_16_bits_cannot_hold) {
  EXPECT_EQ(sent(wire_format(WireCode::fp16), {65519, 65520, -1e9F, 6e-8F, 2e-8F}),
            (Floats{65504, kInf, -kInf, 0x1p-24F, 0}));
  EXPECT_EQ(sent(wire_format(WireCode::bf16), {kLargest, -kLargest}), (Floats{kInf, -kInf}));
  const WireFormat top{.code = WireCode::topk, .bits = 0, .bucket = 4, .kept = 1};
  EXPECT_EQ(sent(top, {1, kLargest, 2, 3}), (Floats{0, 0x1.fep127F, 0, 0}));
  WireFormat half = wire_format(WireCode::maxmin, 0, 4);
  half.half_meta = true;
  for (const Floats& wide : {Floats{0, 1e7F}, Floats{-70000, 0}, Floats{70000, 70001}}) {
    EXPECT_TRUE(std::isnan(sent(half, wide)[0]));
    EXPECT_TRUE(std::isnan(sent(half, wide)[1]));
  }
  const Floats y = sent(half, {1e-9F, -1e-9F, 3e-9F});  // below what half precision knows
  for (const float value : y) {
    EXPECT_NEAR(value, 0, 6e-8);
  }
}

/// Peak bytes of scratch memory of one call.
size_t workspace_of(const Kernels& table, const WireFormat& format, int64_t n, bool dry) {
  Floats x(static_cast<size_t>(n));
  Bytes wire(wire_bytes(format, n));
  Arena arena(dry);
  Stream stream(arena, 2);
  table.encode(stream, {.x = Tensor(x.data(), DType::fp32, {n}), .wire = wire, .format = format});
  return arena.use(Memory::scratch).peak;
}

TEST(WireSpecial, plans_have_the_workspace) {
  for (const int64_t bucket : {0, 8193, 12289, 65537, 70000}) {
    for (const int64_t n : {1, 8194, 65536, 65537, 140001, 500009}) {
      const WireFormat format = wire_format(WireCode::linear8, bucket);
      const Kernels& table = first_table();
      const size_t planned = workspace_of(*planning(table).kernels, format, n, true);
      EXPECT_EQ(planned, workspace_of(table, format, n, false)) << bucket << " " << n;
    }
  }
}

TEST(WireSpecial, places_that_cannot_be_make_their_bucket_nan) {
  const WireFormat format{.code = WireCode::topk, .bits = 0, .bucket = 100, .kept = 5};
  const Floats x = normal_numbers(150, 14);
  const Bytes sound = encode(first_table(), format, x);
  const Floats want = decode(first_table(), format, sound, x.size());
  for (const uint16_t place : {uint16_t{50}, uint16_t{99}, uint16_t{100}, uint16_t{65535}}) {
    Bytes wire = sound;
    std::memcpy(wire.data() + 36, &place, 2);  // the last of the second bucket, of 50 values
    const Floats y = decode(first_table(), format, wire, x.size());
    EXPECT_EQ(Floats(y.begin(), y.begin() + 100), Floats(want.begin(), want.begin() + 100));
    EXPECT_TRUE(std::all_of(y.begin() + 100, y.end(), [](float v) { return std::isnan(v); }));
  }
  Bytes twice = sound;
  std::memcpy(twice.data() + 4, twice.data(), 2);
  EXPECT_TRUE(std::isnan(decode(first_table(), format, twice, x.size())[0]));
}

}  // namespace
}  // namespace espalier::kernels::wire_special_test
