// Messages of every table under test (tested_tables.h) equal the first CPU table's byte by byte,
// for every code, bucket, size, value and address; decoded values are equal bit by bit, for any
// bytes. The other tests of messages compare that one table with the definition (wire_test.cpp).
#include <gtest/gtest.h>

#include "tests/kernels/tested_tables.h"
#include "tests/kernels/wire_case.h"

namespace espalier::kernels::wire_tables_test {
namespace {

Tensor floats(Floats& values) {
  return Tensor(values.data(), DType::fp32, {static_cast<int64_t>(values.size())});
}
std::span<std::byte> span_of(const Tensor& bytes, size_t first, size_t count) {
  return {static_cast<std::byte*>(bytes.data) + first, count};
}
Mirror mirror_of(Stream& stream, const Tensor& host) {
  Mirror mirror = Mirror::of_host(stream, host);
  mirror.write();
  return mirror;
}

/// A message in memory, some bytes behind an aligned address.
struct Placed {
  size_t shift = 0;
  int variation = 0;  ///< of TestedTable
};

constexpr std::byte kUntouched{0x5a};

Bytes encode_on(const TestedTable& table, const WireFormat& format, Floats x, Rounding rounding,
                Placed placed) {
  const size_t bytes = wire_bytes(format, static_cast<int64_t>(x.size()));
  Bytes memory(bytes + placed.shift + 8, kUntouched);
  table.with_stream(placed.variation, [&](Stream& stream) {
    const Mirror values = mirror_of(stream, floats(x));
    const Mirror wire = mirror_of(stream, {memory.data(), DType::uint8, {std::ssize(memory)}});
    table.kernels->encode(stream, {.x = values.device(),
                                   .wire = span_of(wire.device(), placed.shift, bytes),
                                   .format = format,
                                   .key = rounding.key,
                                   .first = rounding.first});
    wire.read();
  });
  for (size_t i = 0; i < memory.size(); ++i) {
    const bool inside = i >= placed.shift && i < placed.shift + bytes;
    EXPECT_TRUE(inside || memory[i] == kUntouched) << "byte " << i;
  }
  const auto first = memory.begin() + static_cast<int64_t>(placed.shift);
  return {first, first + static_cast<int64_t>(bytes)};
}

/// Bits, so that NaN equals itself.
std::vector<uint32_t> bits_of(const Floats& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) {
    bits.push_back(value != value ? 0x7fc00000U : std::bit_cast<uint32_t>(value));
  }
  return bits;
}

std::vector<uint32_t> decode_on(const TestedTable& table, const WireFormat& format,
                                const Bytes& message, Floats start, bool accumulate,
                                Placed placed) {
  Bytes memory(placed.shift);
  memory.insert(memory.end(), message.begin(), message.end());
  table.with_stream(placed.variation, [&](Stream& stream) {
    const Mirror values = mirror_of(stream, floats(start));
    const Mirror wire = mirror_of(stream, {memory.data(), DType::uint8, {std::ssize(memory)}});
    table.kernels->decode(stream, {.wire = span_of(wire.device(), placed.shift, message.size()),
                                   .y = values.device(),
                                   .format = format,
                                   .accumulate = accumulate});
    values.read();
  });
  return bits_of(start);
}

void expect_decoded(const TestedTable& table, const WireFormat& format, const Bytes& wire, size_t n,
                    Placed placed) {
  const Floats start = normal_numbers(n, 9);
  for (const bool accumulate : {false, true}) {
    ASSERT_EQ(decode_on(table, format, wire, start, accumulate, placed),
              bits_of(decode(first_table(), format, wire, start, accumulate)));
  }
}

/// In all variations or in that of `placed`.
void expect_same(const WireFormat& format, const Floats& x, Rounding rounding = {},
                 Placed placed = {}) {
  const Bytes want = encode(first_table(), format, x, rounding);
  for (const TestedTable& table : tested_tables()) {
    SCOPED_TRACE(fmt::format("{} {} n {} key {} shift {} variation {}", table.kernels->name,
                             text(format), x.size(), rounding.key, placed.shift, placed.variation));
    placed.variation %= table.variations;
    ASSERT_TRUE(encode_on(table, format, x, rounding, placed) == want);
    expect_decoded(table, format, want, x.size(), placed);
  }
}

/// Normal numbers, numbers of many sizes, random bits; every fourth seed also has values that are
/// not finite.
Floats some_numbers(size_t n, unsigned seed) {
  if (seed % 4 < 2) {
    return seed % 2 == 0 ? normal_numbers(n, seed, 1e-3F) : wide_numbers(n, seed, 44);
  }
  std::mt19937 random(seed);
  Floats x(n);
  for (float& value : x) {
    value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (seed % 4 == 2 && !std::isfinite(value)) {
      value = 0;
    }
  }
  return x;
}

class WireTables : public ::testing::Test {
 protected:
  void SetUp() override {
    if (tested_tables().empty()) {
      GTEST_SKIP() << why_no_table();
    }
  }
};

/// Sizes of a part of a group, of several, and more than a block of threads has at once.
TEST_F(WireTables, have_the_bytes_and_values_of_the_cpu) {
  unsigned seed = 0;
  for (const WireFormat& format : all_formats({0, 1, 7, 64, 100, 512, 2100})) {
    for (const size_t n : {0, 1, 7, 513, 4500}) {
      ++seed;
      expect_same(format, some_numbers(n, seed),
                  {.key = seed % 2 == 0 ? uint64_t{0} : 77 + seed, .first = seed % 5},
                  {.shift = seed % 3 == 0 ? seed % 8 : 0, .variation = static_cast<int>(seed % 7)});
      if (HasFatalFailure()) {
        return;
      }
    }
  }
}

/// Beyond 65,536 values the CPU processes buckets in parts, on which sums of magnitudes depend.
TEST_F(WireTables, measure_large_buckets_in_the_same_parts) {
  for (const int64_t bucket : {int64_t{0}, int64_t{60000}, int64_t{10001}}) {
    for (const WireCode code :
         {WireCode::sign, WireCode::maxmin, WireCode::dynamic8, WireCode::table, WireCode::topk}) {
      const bool all = code == WireCode::topk && bucket == 0;
      expect_same(wire_format(code, all ? 65536 : bucket), normal_numbers(150001, 3));
    }
  }
}

/// Among equal magnitudes those at lower positions are kept, also across tiles of a block.
TEST_F(WireTables, keep_the_first_of_equal_magnitudes) {
  Floats x(20000);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(static_cast<int>(philox(1, 2, i)[0] % 7) - 3);
  }
  for (const int64_t bucket : {int64_t{100}, int64_t{1024}, int64_t{20000}}) {
    for (const int64_t kept : {int64_t{1}, bucket / 16, bucket / 2, bucket - 1, bucket}) {
      expect_same({.code = WireCode::topk, .bits = 0, .bucket = bucket, .kept = kept}, x);
    }
  }
}

TEST_F(WireTables, decode_any_bytes_alike) {
  std::mt19937 random(5);
  for (const WireFormat& format : all_formats({0, 1, 9, 100})) {
    for (const size_t n : {5, 1003}) {
      Bytes wire(wire_bytes(format, static_cast<int64_t>(n)));
      for (std::byte& byte : wire) {
        byte = static_cast<std::byte>(random());
      }
      for (const TestedTable& table : tested_tables()) {
        SCOPED_TRACE(fmt::format("{} {} n {}", table.kernels->name, text(format), n));
        expect_decoded(table, format, wire, n, {});
        if (HasFatalFailure()) {
          return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace espalier::kernels::wire_tables_test
