// Every wire code against the plain decoder of wire_case.h: a bucket's metadata, and that the
// nearest value is chosen. All tables produce the same bytes (wire_tables_test.cpp).
#include <gtest/gtest.h>

#include "tests/kernels/wire_case.h"

namespace espalier::kernels::wire_test {
namespace {

const std::vector<int64_t> kSizes{0, 1, 7, 63, 64, 65, 511, 512, 513, 4099, 20011};
const std::vector<int64_t> kBuckets{0, 1, 7, 64, 100, 512, 9001};

int64_t bucket_of(const WireFormat& format, size_t n) {
  return format.bucket == 0 ? static_cast<int64_t>(n) : format.bucket;
}

/// Values of bucket number `number`.
Floats part(const WireFormat& format, const Floats& x, int64_t number) {
  const int64_t bucket = bucket_of(format, x.size());
  const auto end = std::min<int64_t>(static_cast<int64_t>(x.size()), (number + 1) * bucket);
  return {x.begin() + number * bucket, x.begin() + end};
}

double largest(const Floats& x) {
  double found = 0;
  for (const float value : x) {
    found = std::max(found, std::fabs(static_cast<double>(value)));
  }
  return found;
}

void expect_range(const WireFormat& f, const std::byte* meta, const Floats& x) {
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  const double levels = (1 << f.bits) - 1;
  const double unit =
      f.half_meta ? reference::half(reference::take<uint16_t>(meta)) : reference::take<float>(meta);
  const double least = f.half_meta ? reference::half(reference::take<uint16_t>(meta + 2))
                                   : reference::take<float>(meta + 4);
  if (!f.half_meta) {
    EXPECT_EQ(least, *low);
    EXPECT_NEAR(unit, (double{*high} - *low) / levels, 3e-7 * unit);
    return;
  }
  EXPECT_LE(least, *low);
  EXPECT_GE(least, *low - std::max(0x1p-24, std::fabs(*low) * 0x1p-10));
  EXPECT_GE(least + levels * unit, *high - 1e-6 * levels * unit);
  EXPECT_LE(unit, (*high - least) / levels * (1 + 0x1p-10) + 0x1p-24);
}

/// Percentiles of the sorted magnitudes: of the whole bucket up to 2,048 values, else of every
/// k-th.
void expect_percentiles(const WireFormat& f, const std::byte* meta, const Floats& x) {
  const size_t stride = (x.size() + 2047) / 2048;
  Values sorted;
  for (size_t i = 0; i < x.size(); i += stride) {
    sorted.push_back(std::fabs(x[i]));
  }
  std::sort(sorted.begin(), sorted.end());
  const int count = 1 << (f.bits - 1);
  for (int k = 1; k <= count; ++k) {
    const double place = 0.99 * k / count * static_cast<double>(sorted.size() - 1);
    const auto below = static_cast<size_t>(std::max(0.0, std::ceil(place - 0.5 - 1e-9)));
    const auto above = static_cast<size_t>(std::floor(place + 0.5 + 1e-9));
    const float got = reference::take<float>(meta + 4 * (k - 1));
    EXPECT_TRUE(got == sorted[below] || got == sorted[std::min(above, sorted.size() - 1)])
        << k << ": " << got << " instead of " << sorted[below];
  }
}

/// Checks the metadata of a bucket with these values, all finite.
void expect_carried(const WireFormat& f, const std::byte* meta, const Floats& x) {
  const double most = largest(x);
  const double scale = f.half_meta ? 0 : reference::take<float>(meta);
  const double numbers = f.code == WireCode::fp8_e5m2 ? 57344 : 448;
  switch (f.code) {
    case WireCode::maxmin:
      return expect_range(f, meta, x);
    case WireCode::table:
      return expect_percentiles(f, meta, x);
    case WireCode::fp8_e5m2:
    case WireCode::fp8_e4m3:
      EXPECT_EQ(scale, most == 0
                           ? 0
                           : std::ldexp(1, static_cast<int>(std::ceil(std::log2(most / numbers)))));
      return;
    case WireCode::static8:
    case WireCode::mantissa8:
      EXPECT_EQ(scale, most == 0
                           ? 0.0F
                           : static_cast<float>(std::pow(10, std::ceil(std::log10(most) - 1e-12))));
      return;
    case WireCode::sign: {
      double sum = 0;
      for (const float value : x) {
        sum += std::fabs(value);
      }
      EXPECT_NEAR(scale, sum / static_cast<double>(x.size()), 1e-7 * scale);
      return;
    }
    default:
      EXPECT_EQ(scale, most);
  }
}

/// For one bucket: its codes are those of the nearest values, and decode to them.
void expect_nearest(const WireFormat& f, const Values& values, const std::vector<size_t>& codes,
                    const Floats& x, const float* decoded) {
  double extent = 0;
  for (const double value : values) {
    extent = std::isfinite(value) ? std::max(extent, std::fabs(value)) : extent;
  }
  for (size_t i = 0; i < x.size(); ++i) {
    const double value = values[codes[i]];
    ASSERT_NEAR(decoded[i], value, 2e-7 * extent) << i;
    if (f.code == WireCode::sign) {
      ASSERT_EQ(codes[i], std::signbit(x[i]) ? 1 : 0) << i;
      continue;
    }
    double least = std::numeric_limits<double>::infinity();
    for (const double other : values) {
      least = std::isfinite(other) ? std::min(least, std::fabs(x[i] - other)) : least;
    }
    ASSERT_LE(std::fabs(x[i] - value),
              least + 3e-7 * (std::fabs(x[i]) + (f.code == WireCode::maxmin ? extent : 0)))
        << i << ": " << x[i] << " became " << value;
  }
}

void expect_message(const WireFormat& f, const Floats& x, const Bytes& wire,
                    const Floats& decoded) {
  const auto n = static_cast<int64_t>(x.size());
  const int64_t bucket = bucket_of(f, x.size());
  const int64_t buckets = n == 0 ? 0 : (n + bucket - 1) / bucket;
  const std::byte* codes = wire.data() + buckets * reference::carried(f);
  ASSERT_EQ(static_cast<int64_t>(wire.size()),
            buckets * reference::carried(f) + (n * f.bits + 7) / 8);
  for (int64_t number = 0; number < buckets; ++number) {
    const Floats values = part(f, x, number);
    const std::byte* meta = wire.data() + number * reference::carried(f);
    expect_carried(f, meta, values);
    std::vector<size_t> mine;
    for (size_t i = 0; i < values.size(); ++i) {
      mine.push_back(reference::code_at(codes, number * bucket + static_cast<int64_t>(i), f.bits));
    }
    expect_nearest(f, reference::values(f, meta), mine, values, decoded.data() + number * bucket);
    if (::testing::Test::HasFatalFailure()) {
      return;
    }
  }
}

/// Values and their positions, by a plain sort.
void expect_topk(const WireFormat& f, const Floats& x, const Bytes& wire, const Floats& decoded) {
  const auto n = static_cast<int64_t>(x.size());
  size_t at = 0;
  for (int64_t number = 0; number * f.bucket < n; ++number) {
    const Floats values = part(f, x, number);
    std::vector<size_t> order(values.size());
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = i;
    }
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return std::fabs(values[a]) > std::fabs(values[b]);
    });
    order.resize(std::min(order.size(), static_cast<size_t>(f.kept)));
    std::sort(order.begin(), order.end());
    Floats want(values.size(), 0.0F);
    for (const size_t place : order) {
      ASSERT_EQ(reference::take<uint16_t>(wire.data() + at), place);
      ASSERT_EQ(reference::take<uint16_t>(wire.data() + at + 2), to_bf16(values[place]).bits);
      want[place] = to_float(to_bf16(values[place]));
      at += 4;
    }
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(decoded[static_cast<size_t>(number * f.bucket) + i], want[i]);
    }
  }
  EXPECT_EQ(at, wire.size());
}

/// (H x)_i = sum of (-1)^popcount(i & j) x_j.
Values hadamard(Values x) {
  for (size_t stride = 1; stride < x.size(); stride *= 2) {
    for (size_t i = 0; i < x.size(); ++i) {
      if ((i & stride) == 0) {
        const double a = x[i];
        x[i] = a + x[i + stride];
        x[i + stride] = a - x[i + stride];
      }
    }
  }
  return x;
}

double sign_of(uint32_t seed, size_t i) {
  return (philox(seed, 0, i / 128)[i / 32 % 4] >> (i % 32) & 1U) == 0 ? 1 : -1;
}

/// One bucket: its codes are the centroids nearest to the rotated values, and decode by the scale.
void expect_rotated(const WireFormat& f, const Floats& x, const std::byte* wire,
                    const float* decoded) {
  const std::vector<Values> centroids{{0.797884561},
                                      {0.452780035, 1.51041761},
                                      {0.245094179, 0.756005281, 1.34390928, 2.1519457},
                                      {0.12839503, 0.388048299, 0.656759119, 0.942340456, 1.2562312,
                                       1.61804639, 2.06901673, 2.73258957}};
  const Values& magnitudes = centroids[f.bits - 1];
  const auto seed = reference::take<uint32_t>(wire + 4);
  Values rotated(std::bit_ceil(x.size()));
  double squares = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    rotated[i] = x[i] * sign_of(seed, i);
    squares += double{x[i]} * x[i];
  }
  const double root = std::sqrt(static_cast<double>(rotated.size()));
  rotated = hadamard(rotated);
  Values sent(rotated.size());
  double product = 0;
  for (size_t i = 0; i < sent.size(); ++i) {
    const size_t code = reference::code_at(wire + 8, static_cast<int64_t>(i), f.bits);
    const size_t rank = code % magnitudes.size();
    sent[i] = magnitudes[rank] * (code == rank ? 1 : -1);
    const double z = squares == 0 ? 0 : rotated[i] / std::sqrt(squares);
    for (const double other : magnitudes) {
      ASSERT_LE(std::fabs(std::fabs(z) - magnitudes[rank]), std::fabs(std::fabs(z) - other) + 1e-5);
    }
    ASSERT_TRUE(std::fabs(z) < 1e-5 || (z < 0) == (code != rank)) << z;
    product += rotated[i] / root * sent[i];
  }
  const double scale = squares == 0 ? 0 : squares / product;
  ASSERT_NEAR(reference::take<float>(wire), scale, 1e-5 * scale);
  const Values back = hadamard(sent);
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_NEAR(decoded[i], back[i] / root * sign_of(seed, i) * scale, 1e-5 * scale * root) << i;
  }
}

void expect_eden(const WireFormat& f, const Floats& x, const Bytes& wire, const Floats& decoded) {
  size_t at = 0;
  for (size_t first = 0; first < x.size(); first += static_cast<size_t>(f.bucket)) {
    const Floats values = part(f, x, static_cast<int64_t>(first) / f.bucket);
    expect_rotated(f, values, wire.data() + at, decoded.data() + first);
    if (::testing::Test::HasFatalFailure()) {
      return;
    }
    at += 8 + (std::bit_ceil(values.size()) * static_cast<size_t>(f.bits) + 7) / 8;
  }
  EXPECT_EQ(at, wire.size());
}

void expect_plain(const WireFormat& f, const Floats& x, const Bytes& wire, const Floats& decoded) {
  for (size_t i = 0; i < x.size(); ++i) {
    if (f.code == WireCode::fp32) {
      ASSERT_EQ(reference::take<float>(wire.data() + 4 * i), x[i]);
      ASSERT_EQ(decoded[i], x[i]);
      continue;
    }
    const auto bits = reference::take<uint16_t>(wire.data() + 2 * i);
    if (f.code == WireCode::bf16) {
      ASSERT_EQ(bits, to_bf16(x[i]).bits);
      ASSERT_EQ(decoded[i], to_float(bf16{bits}));
      continue;
    }
    ASSERT_EQ(decoded[i], reference::half(bits)) << bits;
    for (const int step : {-1, 1}) {
      const double other = reference::half(static_cast<uint16_t>(bits + step));
      ASSERT_FALSE(std::fabs(other - x[i]) < std::fabs(decoded[i] - x[i])) << x[i];
    }
  }
}

void expect_right(const WireFormat& f, const Floats& x, const Bytes& wire, const Floats& decoded) {
  if (f.code == WireCode::topk) {
    expect_topk(f, x, wire, decoded);
  } else if (f.code == WireCode::eden) {
    expect_eden(f, x, wire, decoded);
  } else if (f.code <= WireCode::fp16) {
    expect_plain(f, x, wire, decoded);
  } else {
    expect_message(f, x, wire, decoded);
  }
}

TEST(Wire, is_what_the_header_says_for_every_code_size_and_bucket) {
  for (const WireFormat& format : all_formats(kBuckets)) {
    for (const int64_t n : kSizes) {
      const bool wide = n % 2 != 0;
      const Floats x = wide ? wide_numbers(static_cast<size_t>(n), 3, 6)
                            : normal_numbers(static_cast<size_t>(n), 4, 1e-3F);
      SCOPED_TRACE(fmt::format("{} n {}", text(format), n));
      const Bytes wire = encode(first_table(), format, x);
      expect_right(format, x, wire, decode(first_table(), format, wire, x.size()));
      if (HasFailure()) {
        return;
      }
    }
  }
}

TEST(Wire, accumulates) {
  for (const WireFormat& format : all_formats({0, 100})) {
    const Floats x = normal_numbers(5003, 6);
    const Floats start = normal_numbers(5003, 7);
    const Bytes wire = encode(first_table(), format, x);
    const Floats y = decode(first_table(), format, wire, x.size());
    const Floats sum = decode(first_table(), format, wire, start, true);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(sum[i], start[i] + y[i]) << text(format) << " " << i;
    }
  }
}

}  // namespace
}  // namespace espalier::kernels::wire_test
