// Errors of wire formats on a flat gradient, measured in blocks, against those of each layer
// encoded at once.
#include "parallel/choice/error_table.h"

#include <gmock/gmock.h>

#include <cmath>

#include "parallel/choice/bit_choice.h"
#include "parallel/flat.h"
#include "src/core/error.h"
#include "src/core/rng.h"
#include "src/kernels/rules/wire/codecs.h"

namespace espalier::parallel::error_table_test {
namespace {

using kernels::WireCode;
using kernels::WireFormat;

std::vector<WireFormat> formats() {
  return {{.code = WireCode::fp32, .bits = 32},
          {.code = WireCode::bf16, .bits = 16},
          {.code = WireCode::fp16, .bits = 16},
          {.code = WireCode::fp8_e5m2, .bits = 8, .bucket = 512},
          {.code = WireCode::dynamic8, .bits = 8, .bucket = 4096},
          {.code = WireCode::linear8, .bits = 8},
          {.code = WireCode::maxmin, .bits = 4, .bucket = 128},
          {.code = WireCode::maxmin, .bits = 3, .bucket = 1000},
          {.code = WireCode::maxmin, .bits = 2, .bucket = 100'000},
          {.code = WireCode::table, .bits = 2},
          {.code = WireCode::sign, .bits = 1, .bucket = 512},
          {.code = WireCode::topk, .bits = 0, .bucket = 1024, .kept = 32}};
}

/// Layers of very different gradients, with gaps between them; one is empty, one has a single
/// element.
struct Gradient {
  std::vector<Range> layers{{0, 5}, {16, 200'001}, {200'032, 1}, {200'048, 0}, {200'048, 70'000}};
  std::vector<float> values = std::vector<float>(270'048);

  Gradient() {
    float size = 1e-4F;
    for (const Range& layer : layers) {
      for (int64_t i = layer.first; i < layer.end(); ++i) {
        const Philox words = philox(3, 0, static_cast<uint64_t>(i));
        values[i] = size * normal_pair(words[0], words[1])[0];
      }
      size *= 30;
    }
  }
  Tensor tensor() { return {values.data(), DType::fp32, Shape{std::ssize(values)}}; }
};

struct CpuKernels : ::testing::TestWithParam<const kernels::Kernels*> {
  Arena arena;
  Stream stream{arena, 2};
  Gradient gradient;
};

/// Over runs of 64: number of values times the lost share of their squares, at most 1.
double relative(std::span<const float> x, std::span<const float> y) {
  double error = 0;
  for (size_t first = 0; first < x.size(); first += 64) {
    const size_t n = std::min<size_t>(64, x.size() - first);
    double lost = 0;
    double all = 0;
    for (size_t i = first; i < first + n; ++i) {
      lost += std::pow(static_cast<double>(x[i]) - static_cast<double>(y[i]), 2);
      all += std::pow(static_cast<double>(x[i]), 2);
    }
    error += lost == 0 ? 0 : static_cast<double>(n) * std::min(1.0, lost / all);
  }
  return error;
}

/// One call for the whole layer.
double whole_layer(const kernels::Kernels& kernels, Stream& stream, const Tensor& x,
                   const kernels::EncodeArgs& how, ErrorScale scale = ErrorScale::squares) {
  std::vector<std::byte> wire(wire_bytes(how.format, x.count()));
  std::vector<float> y(static_cast<size_t>(x.count()));
  kernels::EncodeArgs encode = how;
  encode.x = x;
  encode.wire = wire;
  kernels.encode(stream, encode);
  kernels.decode(
      stream, {.wire = wire, .y = {y.data(), DType::fp32, Shape{x.count()}}, .format = how.format});
  if (scale == ErrorScale::relative) {
    return relative(x.span<float>(), y);
  }
  double sum = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const double lost = static_cast<double>(x.get<float>()[i]) - static_cast<double>(y[i]);
    sum += lost * lost;
  }
  return sum;
}

TEST_P(CpuKernels, BlocksGiveTheErrorsOfWholeLayers) {
  for (const uint64_t key : {0, 77}) {
    const ChoiceTable table =
        measure_errors(*GetParam(), stream, {.layers = gradient.layers, .choices = formats()},
                       gradient.tensor(), key);
    ASSERT_EQ(table.layers, std::ssize(gradient.layers));
    ASSERT_EQ(table.choices, std::ssize(formats()));
    for (int64_t l = 0; l < table.layers; ++l) {
      const Range& layer = gradient.layers[l];
      for (int c = 0; c < table.choices; ++c) {
        const WireFormat format = formats()[c];
        SCOPED_TRACE(::testing::Message() << "layer " << l << ", choice " << c);
        EXPECT_EQ(table.bytes[table.at(l, c)],
                  static_cast<int64_t>(wire_bytes(format, layer.count)));
        const double error = table.error[table.at(l, c)];
        if (layer.count == 0 || format.code == WireCode::fp32) {
          EXPECT_EQ(error, 0);
          continue;
        }
        const double want =
            whole_layer(*GetParam(), stream, flat_part(gradient.tensor(), layer.first, layer.count),
                        {.format = format, .key = key, .first = layer.first});
        EXPECT_NEAR(error, want, 1e-10 * want);
        EXPECT_TRUE(layer.count == 1 || error > 0);
      }
    }
  }
}

TEST_P(CpuKernels, RelativeErrorsAreThoseOfRuns) {
  const std::vector<WireFormat> choices{{.code = WireCode::maxmin, .bits = 4, .bucket = 512},
                                        {.code = WireCode::maxmin, .bits = 2, .bucket = 64},
                                        {.code = WireCode::sign, .bits = 1, .bucket = 128}};
  const ErrorTableOptions options{
      .layers = gradient.layers, .choices = choices, .scale = ErrorScale::relative};
  const ChoiceTable once = measure_errors(*GetParam(), stream, options, gradient.tensor());
  for (int64_t l = 0; l < once.layers; ++l) {
    const Range& layer = gradient.layers[l];
    for (int c = 0; c < once.choices && layer.count > 0; ++c) {
      const double want =
          whole_layer(*GetParam(), stream, flat_part(gradient.tensor(), layer.first, layer.count),
                      {.format = choices[c], .first = layer.first}, ErrorScale::relative);
      const double error = once.error[once.at(l, c)];
      EXPECT_NEAR(error, want, 1e-10 * want) << l << " " << c;
      EXPECT_LE(error, static_cast<double>(layer.count));
    }
  }
  // Scales layers by powers of two, so that no bit of a share changes.
  for (float& value : gradient.values) {
    value *= 1024;
  }
  EXPECT_EQ(measure_errors(*GetParam(), stream, options, gradient.tensor()).error, once.error);
}

TEST_P(CpuKernels, ZerosThatDecodeToOtherValuesCountAsLost) {
  // A row of zeros beside a row of values: a bucket of both loses the zeros, a bucket of its own
  // does not.
  std::vector<float> values(128);
  for (size_t i = 0; i < 64; ++i) {
    values[i] = 1 + static_cast<float>(i % 7);
  }
  const ChoiceTable table =
      measure_errors(*GetParam(), stream,
                     {.layers = {{64, 64}, {0, 128}},
                      .choices = {{.code = WireCode::maxmin, .bits = 8, .bucket = 64},
                                  {.code = WireCode::maxmin, .bits = 8, .bucket = 128},
                                  {.code = WireCode::sign, .bits = 1, .bucket = 128}},
                      .scale = ErrorScale::relative},
                     {values.data(), DType::fp32, Shape{128}});
  EXPECT_EQ(table.error[table.at(0, 0)], 0);
  EXPECT_LT(table.error[table.at(1, 0)], 1);
  EXPECT_GE(table.error[table.at(1, 2)], 64);
}

TEST_P(CpuKernels, SampledBlocksEstimateTheErrorOfAll) {
  const ErrorTableOptions all{
      .layers = {{0, 100}, {16, 200'001}},
      .choices = {{.code = WireCode::maxmin, .bits = 4, .bucket = 512},
                  {.code = WireCode::maxmin, .bits = 4, .bucket = 64}},
  };
  ErrorTableOptions some = all;
  some.most_blocks = 2;
  for (const ErrorScale scale : {ErrorScale::squares, ErrorScale::relative}) {
    ErrorTableOptions whole = all;
    whole.scale = some.scale = scale;
    const ChoiceTable of_all = measure_errors(*GetParam(), stream, whole, gradient.tensor());
    const ChoiceTable of_some = measure_errors(*GetParam(), stream, some, gradient.tensor());
    EXPECT_EQ(of_some.bytes, of_all.bytes);
    for (int c = 0; c < 2; ++c) {
      const size_t short_one = of_all.at(0, c);
      const size_t long_one = of_all.at(1, c);
      EXPECT_EQ(of_some.error[short_one], of_all.error[short_one]);
      EXPECT_NE(of_some.error[long_one], of_all.error[long_one]);
      EXPECT_NEAR(of_some.error[long_one] / of_all.error[long_one], 1, 0.02);
    }
  }
}

TEST_P(CpuKernels, ScratchIsBounded) {
  const WireFormat four{.code = WireCode::maxmin, .bits = 4, .bucket = 1000};
  std::vector<float> values(1'000'000);
  measure_errors(*GetParam(), stream, {.layers = {{0, 1'000'000}}, .choices = {four}},
                 {values.data(), DType::fp32, Shape{1'000'000}});
  EXPECT_LE(arena.use(Memory::scratch).peak, 65'536U * 5);
}

TEST_P(CpuKernels, HalfGradients) {
  std::vector<bf16> half(gradient.values.size());
  std::vector<float> same(half.size());
  for (size_t i = 0; i < half.size(); ++i) {
    half[i] = to_bf16(gradient.values[i]);
    same[i] = to_float(half[i]);
  }
  const auto count = std::ssize(half);
  const ErrorTableOptions options{.layers = gradient.layers, .choices = formats()};
  const ChoiceTable table =
      measure_errors(*GetParam(), stream, options, {half.data(), DType::bf16, Shape{count}});
  EXPECT_EQ(
      table.error,
      measure_errors(*GetParam(), stream, options, {same.data(), DType::fp32, Shape{count}}).error);
  EXPECT_EQ(table.error[table.at(1, 1)], 0) << "bf16 of bf16";
}

TEST_P(CpuKernels, ChoicesWithNonFiniteErrorsAreNotTaken) {
  // 1e6 exceeds the range of fp16; NaN exceeds every range.
  const std::vector<WireFormat> choices{{.code = WireCode::fp32, .bits = 32},
                                        {.code = WireCode::fp16, .bits = 16},
                                        {.code = WireCode::maxmin, .bits = 4, .bucket = 512}};
  gradient.values[100'000] = 1e6F;
  gradient.values[210'000] = std::nanf("");
  const ChoiceTable table = measure_errors(
      *GetParam(), stream, {.layers = gradient.layers, .choices = choices}, gradient.tensor());
  EXPECT_FALSE(std::isfinite(table.error[table.at(1, 1)]));
  EXPECT_TRUE(std::isfinite(table.error[table.at(1, 2)]));
  for (int c = 0; c < 3; ++c) {
    EXPECT_FALSE(std::isfinite(table.error[table.at(4, c)])) << c;
  }
  const BitChoice result = least_bytes(table, {.uniform = 1});
  EXPECT_NE(result.choice[1], 1);
  EXPECT_EQ(result.choice[4], 1) << "a broken layer keeps the uniform choice";
}

std::vector<const kernels::Kernels*> cpu_kernels() {
  std::vector<const kernels::Kernels*> tables = kernels::available();
  std::erase_if(tables, [](const auto* table) { return !table->name.starts_with("cpu"); });
  return tables;
}

INSTANTIATE_TEST_SUITE_P(All, CpuKernels, ::testing::ValuesIn(cpu_kernels()), [](const auto& test) {
  std::string name(test.param->name);
  std::ranges::replace(name, '-', '_');
  return name;
});

}  // namespace
}  // namespace espalier::parallel::error_table_test
