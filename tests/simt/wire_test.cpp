// Messages of the table "cuda-simt" equal the CPU's byte by byte, for every code, bucket, size,
// value and address. Decoded values are equal bit by bit, for any bytes.
#include <gtest/gtest.h>

#include "src/kernels/cuda/table.h"
#include "tests/kernels/wire_case.h"
#include "tests/simt/queue.h"

namespace espalier::kernels {
namespace {

using simt::Order;

const Kernels& cpu_table() { return *computing_tables().front(); }

struct Start {
  size_t shift = 0;  ///< bytes from an aligned address to the message
  Order order = Order::ascending;
};

Bytes encode_simt(const WireFormat& format, const Floats& x, Rounding rounding = {},
                  Start start = {}) {
  Arena arena;
  simt::Queue queue(start.order);
  Stream stream(arena, 1, &queue);
  Floats values(x);
  const auto n = static_cast<int64_t>(x.size());
  const size_t bytes = wire_bytes(format, n);
  Bytes memory(bytes + start.shift + 8, std::byte{0x5a});
  cuda_simt::table().encode(stream, {.x = Tensor(values.data(), DType::fp32, {n}),
                                     .wire = {memory.data() + start.shift, bytes},
                                     .format = format,
                                     .key = rounding.key,
                                     .first = rounding.first});
  stream.synchronize();
  for (size_t i = 0; i < memory.size(); ++i) {
    const bool inside = i >= start.shift && i < start.shift + bytes;
    EXPECT_TRUE(inside || memory[i] == std::byte{0x5a}) << text(format) << " byte " << i;
  }
  const auto first = memory.begin() + static_cast<int64_t>(start.shift);
  return {first, first + static_cast<int64_t>(bytes)};
}

/// Compares bits, so that NaN equals itself.
std::vector<uint32_t> decode_simt(const WireFormat& format, const Bytes& message, Floats start,
                                  bool accumulate, size_t shift = 0) {
  Arena arena;
  simt::Queue queue;
  Stream stream(arena, 1, &queue);
  Bytes memory(shift);
  memory.insert(memory.end(), message.begin(), message.end());
  const auto n = static_cast<int64_t>(start.size());
  cuda_simt::table().decode(stream, {.wire = {memory.data() + shift, message.size()},
                                     .y = Tensor(start.data(), DType::fp32, {n}),
                                     .format = format,
                                     .accumulate = accumulate});
  stream.synchronize();
  std::vector<uint32_t> bits;
  for (const float value : start) {
    bits.push_back(value != value ? 0x7fc00000U : std::bit_cast<uint32_t>(value));
  }
  return bits;
}

std::vector<uint32_t> decode_cpu(const WireFormat& format, const Bytes& message,
                                 const Floats& start, bool accumulate) {
  std::vector<uint32_t> bits;
  for (const float value : decode(cpu_table(), format, message, start, accumulate)) {
    bits.push_back(value != value ? 0x7fc00000U : std::bit_cast<uint32_t>(value));
  }
  return bits;
}

/// Normal numbers, numbers of many sizes, random bits; every fourth n also has values that are not
/// finite.
Floats some_numbers(size_t n, unsigned seed) {
  if (seed % 4 < 2) {
    return seed % 2 == 0 ? normal_numbers(n, seed, 1e-3F) : wide_numbers(n, seed, 44);
  }
  std::mt19937 random(seed);
  Floats x(n);
  for (float& value : x) {
    const auto bits = static_cast<uint32_t>(random());
    value = std::bit_cast<float>(bits);
    if (seed % 4 == 2 && !std::isfinite(value)) {
      value = 0;
    }
  }
  return x;
}

void expect_same(const WireFormat& format, const Floats& x, Rounding rounding, Start start) {
  SCOPED_TRACE(
      fmt::format("{} n {} key {} shift {}", text(format), x.size(), rounding.key, start.shift));
  const Bytes wire = encode(cpu_table(), format, x, rounding);
  ASSERT_TRUE(encode_simt(format, x, rounding, start) == wire);
  const Floats before = normal_numbers(x.size(), 9);
  for (const bool accumulate : {false, true}) {
    ASSERT_EQ(decode_simt(format, wire, before, accumulate, start.shift),
              decode_cpu(format, wire, before, accumulate));
  }
}

TEST(SimtWire, is_the_bytes_and_values_of_the_cpu) {
  unsigned variant = 0;
  for (const WireFormat& format : all_formats({0, 1, 7, 64, 100, 512, 5003})) {
    for (const size_t n : {0, 1, 7, 64, 513, 6007}) {
      ++variant;
      const Rounding rounding{.key = variant % 2 == 0 ? uint64_t{0} : 77 + variant,
                              .first = variant % 5};
      const Start start{.shift = variant % 3 == 0 ? variant % 8 : 0,
                        .order = variant % 7 == 0 ? Order::descending : Order::ascending};
      expect_same(format, some_numbers(n, variant), rounding, start);
      if (HasFatalFailure()) {
        return;
      }
    }
  }
}

/// Beyond 65,536 values the CPU processes buckets in parts, on which sums of magnitudes depend.
TEST(SimtWire, large_buckets_are_measured_as_the_cpu_does) {
  for (const int64_t bucket : {int64_t{0}, int64_t{60000}, int64_t{10001}}) {
    for (const WireCode code :
         {WireCode::sign, WireCode::maxmin, WireCode::dynamic8, WireCode::table, WireCode::topk}) {
      const bool all = code == WireCode::topk && bucket == 0;
      expect_same(wire_format(code, all ? 65536 : bucket), normal_numbers(150001, 3), {}, {});
    }
  }
}

/// Among equal magnitudes those at lower positions are kept, also across tiles of a block.
TEST(SimtWire, topk_of_few_different_magnitudes) {
  Floats x(20000);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(static_cast<int>(philox(1, 2, i)[0] % 7) - 3);
  }
  for (const int64_t bucket : {int64_t{100}, int64_t{1024}, int64_t{20000}}) {
    for (const int64_t kept : {int64_t{1}, bucket / 16, bucket / 2, bucket - 1, bucket}) {
      expect_same({.code = WireCode::topk, .bits = 0, .bucket = bucket, .kept = kept}, x, {}, {});
    }
  }
}

TEST(SimtWire, any_bytes_decode_to_what_the_cpu_makes_of_them) {
  std::mt19937 random(5);
  for (const WireFormat& format : all_formats({0, 9, 100})) {
    for (const size_t n : {5, 1003}) {
      SCOPED_TRACE(fmt::format("{} n {}", text(format), n));
      Bytes wire(wire_bytes(format, static_cast<int64_t>(n)));
      for (std::byte& byte : wire) {
        byte = static_cast<std::byte>(random());
      }
      const Floats before = normal_numbers(n, 4);
      ASSERT_EQ(decode_simt(format, wire, before, false), decode_cpu(format, wire, before, false));
      ASSERT_EQ(decode_simt(format, wire, before, true), decode_cpu(format, wire, before, true));
    }
  }
}

}  // namespace
}  // namespace espalier::kernels
