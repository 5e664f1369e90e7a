// Refused formats of messages. Reference values: PyTorch's casts, bitsandbytes' codes, Dettmers'
// examples and his table of relative errors. Messages byte by byte: wire_test.cpp.
#include <gtest/gtest.h>

#include "io/checkpoint/plain_hdf5.h"
#include "tests/kernels/wire_case.h"

namespace espalier::kernels::wire_format_test {
namespace {

const Kernels& fastest() { return *computing_tables().front(); }

/// Without the first `skipped` bytes.
std::vector<int> codes_of(const Bytes& bytes, size_t skipped) {
  std::vector<int> codes;
  for (size_t i = skipped; i < bytes.size(); ++i) {
    codes.push_back(std::to_integer<int>(bytes[i]));
  }
  return codes;
}

TEST(WireFormat, what_cannot_be_is_a_bug_in_every_table) {
  using enum WireCode;
  const WireFormat wrong[] = {
      {fp32, 16},          {dynamic8, 7},          {maxmin, 0},
      {maxmin, 9},         {table, 9, 512},        {sign, 2},
      {linear8, 8, -1},    {topk, 0, 0, 1},        {topk, 0, 100, 0},
      {topk, 0, 100, 101}, {topk, 0, 65537, 10},   {linear8, 8, 512, 3},
      {topk, 8, 100, 10},  {bf16, 16, 0, 0, true}, {linear8, 8, 8, 0, true},
  };
  Arena arena;
  Stream stream(arena, 1);
  Floats x(1000);
  Bytes wire(4000);
  const Tensor values(x.data(), DType::fp32, {1000});
  for (const Kernels* table : available()) {
    for (const WireFormat& format : wrong) {
      EXPECT_THROW(table->encode(stream, {.x = values, .wire = wire, .format = format}), Bug)
          << text(format);
      EXPECT_THROW(table->decode(stream, {.wire = wire, .y = values, .format = format}), Bug);
    }
    if (table->name != "cuda") {  // this is the host's memory
      EXPECT_NO_THROW(table->encode(stream, {.x = values, .wire = wire}));
    }
    const WireFormat bytes{WireCode::linear8, 8};
    EXPECT_THROW(table->encode(stream, {.x = values, .wire = wire, .format = bytes}), Bug);
    EXPECT_THROW(table->decode(stream, {.wire = wire, .y = values, .format = bytes}), Bug);
    EXPECT_THROW(table->encode(stream, {.x = values, .wire = wire, .first = -1}), Bug);
    EXPECT_THROW(table->encode(stream, {.x = Tensor(x.data(), DType::bf16, {1000}), .wire = wire}),
                 Bug);
  }
}

/// The decoded value of x in a bucket whose largest value is 1.
float sent(WireCode code, float x) {
  const WireFormat format = wire_format(code);
  return decode(fastest(), format, encode(fastest(), format, {x, 1}), 2)[0];
}

/// Dettmers' static tree example is 0.23125, a leaf of three decisions; with the four that his text
/// leaves beside a three-bit exponent it is 0.253125.
TEST(WireFormat, dettmers_examples) {
  EXPECT_NEAR(sent(WireCode::dynamic8, 0.2345678F), 0.236719, 1e-6);
  EXPECT_NEAR(sent(WireCode::static8, 0.2345678F), 0.253125, 1e-6);
  EXPECT_NEAR(sent(WireCode::mantissa8, 0.2345678F), 0.2, 1e-6);
  EXPECT_NEAR(sent(WireCode::dynamic8, 0.0000234F), 0.00001875, 1e-9);
}

/// Percent.
double mean_relative_error(WireCode code, const Floats& x) {
  const WireFormat format = wire_format(code);
  const Floats y = decode(fastest(), format, encode(fastest(), format, x), x.size());
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    sum += std::fabs(static_cast<double>(y[i]) - x[i]) / std::fabs(x[i]);
  }
  return 100 * sum / static_cast<double>(x.size());
}

/// Table 2 of Dettmers, ICLR 2016, relative column: ratios to the dynamic tree within 20 %, and the
/// order. (The absolute column is impossible: a linear code of 7 bits errs by at least 0.002.)
TEST(WireFormat, relative_errors_stand_to_each_other_as_dettmers_found) {
  struct Row {
    float size;  // of normal numbers; 0: uniform in (0, 1)
    double dynamic, linear, mantissa, tree;
  };
  for (const Row& row : {Row{0, 1.39, 2.16, 7.22, 4.82}, Row{1, 2.46, 6.47, 6.89, 6.3},
                         Row{10, 2.49, 6.44, 7.19, 6.28}, Row{0.2F, 2.45, 6.15, 8.26, 6.58}}) {
    std::mt19937 random(11);
    std::uniform_real_distribution<float> uniform(1e-7F, 1);
    std::normal_distribution<float> normal(0, row.size == 0 ? 1 : row.size);
    Floats x(400000);
    for (float& value : x) {
      value = row.size == 0 ? uniform(random) : normal(random);
    }
    SCOPED_TRACE(row.size);
    const double dynamic = mean_relative_error(WireCode::dynamic8, x);
    const double linear = mean_relative_error(WireCode::linear8, x);
    const double mantissa = mean_relative_error(WireCode::mantissa8, x);
    const double tree = mean_relative_error(WireCode::static8, x);
    const auto expect_ratio = [&](double error, double published) {
      EXPECT_NEAR(error / dynamic, published / row.dynamic, 0.2 * published / row.dynamic);
      EXPECT_GT(error, dynamic);
    };
    expect_ratio(linear, row.linear);
    expect_ratio(mantissa, row.mantissa);
    expect_ratio(tree, row.tree);
    EXPECT_GT(mantissa, std::max(tree, linear));
    if (row.size !=
        0.2F) {  // there the paper's two differ by 7 %, by the place of the largest value
      EXPECT_EQ(tree < linear, row.tree < row.linear);
    }
  }
}

io::PlainReader golden() { return io::PlainReader(ESPALIER_SOURCE_DIR "/tests/golden/wire.h5"); }

TEST(WireFormat, casts_are_those_of_pytorch) {
  const io::PlainReader file = golden();
  for (const Kernels* table : computing_tables()) {
    for (const auto& [name, code] : {std::pair{"fp8_e5m2", WireCode::fp8_e5m2},
                                     {"fp8_e4m3", WireCode::fp8_e4m3},
                                     {"fp16", WireCode::fp16},
                                     {"bf16", WireCode::bf16}}) {
      const Floats x = file.read(std::string(name) + ".x");
      const Floats want = file.read(std::string(name) + ".code");
      const WireFormat format = wire_format(code);
      const Bytes wire = encode(*table, format, x);  // the largest number is there: scale 1
      const size_t skipped = format.bits == 8 ? 4 : 0;
      ASSERT_TRUE(skipped == 0 || reference::take<float>(wire.data()) == 1);
      for (size_t i = 0; i < x.size(); ++i) {
        const std::byte* at = wire.data() + skipped + i * static_cast<size_t>(format.bits) / 8;
        const int got = skipped == 4 ? std::to_integer<int>(*at) : reference::take<uint16_t>(at);
        ASSERT_EQ(got, static_cast<int>(want[i])) << table->name << " " << name << " " << x[i];
      }
    }
  }
}

TEST(WireFormat, all_codes_of_fp8_are_cast_back_as_in_pytorch) {
  const io::PlainReader file = golden();
  for (const Kernels* table : computing_tables()) {
    for (const auto& [name, code] :
         {std::pair{"fp8_e5m2", WireCode::fp8_e5m2}, {"fp8_e4m3", WireCode::fp8_e4m3}}) {
      const Floats want = file.read(std::string(name) + ".value");
      Bytes wire(4 + 256);
      const float scale = 1;
      std::memcpy(wire.data(), &scale, 4);
      for (size_t i = 0; i < 256; ++i) {
        wire[4 + i] = static_cast<std::byte>(i);
      }
      const Floats y = decode(*table, wire_format(code), wire, 256);
      for (size_t i = 0; i < 256; ++i) {
        EXPECT_TRUE(y[i] == want[i] || (std::isnan(y[i]) && std::isnan(want[i])))
            << name << " " << i;
      }
    }
  }
}

/// bitsandbytes' CPU implementation chooses the farther of two values for 6 % of these numbers;
/// ours never does.
TEST(WireFormat, codes_are_those_of_bitsandbytes) {
  const io::PlainReader file = golden();
  const Floats x = file.read("dynamic8_bnb.x");
  const Floats want = file.read("dynamic8_bnb.code");
  const Floats scales = file.read("dynamic8_bnb.absmax");
  const Bytes wire = encode(fastest(), wire_format(WireCode::dynamic8_bnb, 256), x);
  for (size_t block = 0; block < scales.size(); ++block) {
    EXPECT_EQ(reference::take<float>(wire.data() + 4 * block), scales[block]);
  }
  const std::vector<int> codes = codes_of(wire, 4 * scales.size());
  const auto& map = dynamic_map(DynamicMap::with_sign);
  size_t others = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double number = x[i] / scales[i / 256];
    const auto theirs = static_cast<size_t>(want[i]);
    const auto ours = static_cast<size_t>(codes[i]);
    others += ours == theirs ? 0 : 1;
    ASSERT_TRUE(ours == theirs || std::fabs(map[ours] - number) < std::fabs(map[theirs] - number))
        << number << " became " << map[ours] << ", theirs " << map[theirs];
  }
  EXPECT_LT(others, x.size() / 10);
}

}  // namespace
}  // namespace espalier::kernels::wire_format_test
