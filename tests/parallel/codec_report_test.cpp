// The report of a codec (codec_report.h) against a plain computation, its bits against formulas,
// and the sources of values (codec_choice/codec_values.h).
#include "parallel/wire/codec_report.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <set>

#include "parallel/wire/codec.h"
#include "src/core/rng.h"
#include "src/kernels/rules/wire/codecs.h"
#include "src/train/codec_choice/codec_values.h"
#include "tests/io/checkpoint_example.h"
#include "tests/kernels/kernel_memory.h"

namespace espalier::codec_report_test {
namespace {

using kernels::WireFormat;
using parallel::CodecErrors;
using parallel::CodecReport;
using Floats = std::vector<float>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

Tensor view(Floats& values) { return {values.data(), DType::fp32, Shape{std::ssize(values)}}; }

WireFormat format_of(const std::string& text) {
  return parallel::format_of(parallel::parse_codec(text));
}

/// Each codec, maxmin and table with each number of bits, with small and with default buckets.
std::vector<WireFormat> formats() {
  std::vector<WireFormat> all;
  for (const std::string& name : names(kernels::wire_codecs())) {
    if (name == "maxmin" || name == "table") {
      for (int bits = 1; bits <= 8; ++bits) {
        all.push_back(format_of(fmt::format("{}:{}", name, bits)));
        all.push_back(format_of(fmt::format("{}:{}:100", name, bits)));
      }
      continue;
    }
    all.push_back(format_of(name));
    if (all.back().bits == 8 || name == "sign") {
      all.push_back(format_of(name + ":100"));
    }
  }
  all.push_back(format_of("topk:0.25:64"));
  return all;
}

/// Sizes differ greatly from one thousand elements to the next; some are zero.
Floats gradient(size_t n) {
  Floats values(n);
  for (size_t i = 0; i < n; ++i) {
    const Philox words = philox(5, 0, i);
    const float size = std::exp(static_cast<float>(i / 1000) - 9.0F);
    values[i] = words[2] % 16 == 0 ? 0 : size * normal_pair(words[0], words[1])[0];
  }
  return values;
}

struct Case {
  Arena arena;
  Stream stream{arena, 1};
  const kernels::Kernels& kernels = *kernels::computing_tables().front();

  CodecReport measure(Floats& x, const WireFormat& format, std::vector<Range> parts = {}) {
    if (parts.empty()) {
      parts = {{0, std::ssize(x)}};
    }
    parallel::CodecMeter meter(kernels, stream, view(x), std::move(parts));
    return meter.measure(format, 0);
  }
  /// Values of [first, first + count) after one encode and one decode.
  Floats sent(const Floats& x, const WireFormat& format, const Range& part) {
    Floats from(x.begin() + part.first, x.begin() + part.end());
    Floats to(from.size(), kNan);
    std::vector<std::byte> wire(wire_bytes(format, part.count));
    kernels.encode(stream, {.x = view(from), .wire = wire, .format = format});
    kernels.decode(stream, {.wire = wire, .y = view(to), .format = format});
    return to;
  }
};

/// The definitions in long double, one pass each.
struct Plain {
  Floats x, y;

  using Number = long double;
  template <class Term>
  Number sum(const Term& term) const {
    Number total = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      total += term(Number{x[i]}, Number{y[i]});
    }
    return total;
  }
  template <class Term>
  Number most(const Term& term) const {
    Number best = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      best = std::max(best, std::fabs(term(Number{x[i]}, Number{y[i]})));
    }
    return best;
  }
};

void expect_near(double found, long double expected) {
  EXPECT_NEAR(found, static_cast<double>(expected),
              1e-11 * std::max(1.0, std::fabs(static_cast<double>(expected))));
}

TEST(CodecReport, ErrorsAreThoseOfAPlainComputation) {
  Case here;
  Floats x = gradient(12'345);  // several blocks of sums, and a remainder
  const std::vector<Range> parts{{0, 5000}, {5000, 1}, {5001, 0}, {5001, 7344}};
  for (const WireFormat& format : formats()) {
    SCOPED_TRACE(parallel::text_of(format));
    const CodecReport report = here.measure(x, format, parts);
    ASSERT_EQ(report.parts.size(), parts.size());
    Plain plain{.x = x, .y = {}};
    for (size_t p = 0; p < parts.size(); ++p) {
      const Floats back = here.sent(x, format, parts[p]);
      plain.y.insert(plain.y.end(), back.begin(), back.end());
      EXPECT_EQ(report.parts[p].values, parts[p].count);
      EXPECT_EQ(report.parts[p].bytes, wire_bytes(format, parts[p].count));
    }
    const CodecErrors& all = report.all;
    const auto error = [](auto a, auto b) { return b - a; };
    const auto square = [](auto a, auto /*b*/) { return a * a; };
    const long double squares = plain.sum(square);
    const long double wrong = plain.sum([](auto a, auto b) { return (b - a) * (b - a); });
    const long double back = plain.sum([](auto /*a*/, auto b) { return b * b; });
    const long double products = plain.sum([](auto a, auto b) { return a * b; });
    const long double nonzero = plain.sum([](auto a, auto /*b*/) { return a != 0 ? 1.0L : 0.0L; });
    const long double relative =
        plain.sum([](auto a, auto b) { return a == 0 ? 0.0L : std::fabs((b - a) / a); });
    EXPECT_EQ(all.lost, 0);
    EXPECT_EQ(all.compared(), std::ssize(x));
    expect_near(all.relative_l2(), std::sqrt(wrong / squares));
    expect_near(all.mean_relative(), relative / nonzero);
    expect_near(all.relative_largest(),
                plain.most(error) / plain.most([](auto a, auto /*b*/) { return a; }));
    expect_near(all.cosine(), back == 0 ? 0 : products / std::sqrt(squares * back));
    expect_near(all.bias(),
                plain.sum(error) / plain.sum([](auto a, auto /*b*/) { return std::fabs(a); }));
  }
}

TEST(CodecReport, BitsAreExact) {
  Case here;
  Floats x = gradient(4096);
  const auto bits = [&](const std::string& codec, const std::vector<Range>& parts = {}) {
    return here.measure(x, format_of(codec), parts).all.bits();
  };
  EXPECT_EQ(bits("fp32"), 32);
  EXPECT_EQ(bits("fp16"), 16);
  EXPECT_EQ(bits("maxmin:4:512"), 4 + 64.0 / 512);
  EXPECT_EQ(bits("maxmin:1:128"), 1 + 64.0 / 128);
  EXPECT_EQ(bits("dynamic8:1024"), 8 + 32.0 / 1024);
  EXPECT_EQ(bits("sign:1024"), 1 + 32.0 / 1024);
  EXPECT_EQ(bits("table:3"), 3 + 32.0 * 4 / 4096);
  EXPECT_EQ(bits("topk:0.125:64"), 32.0 / 8);
  // A part is a message with its own bucket and whole bytes.
  EXPECT_EQ(bits("maxmin:4:512", {{0, 3}, {3, 1021}}), 8.0 * (8 + 2 + 2 * 8 + 511) / 1024);
}

TEST(CodecReport, ZerosAreRightAndConstantsToo) {
  Case here;
  Floats zeros(3000);
  Floats constant(3000, -0.5F);
  for (const WireFormat& format : formats()) {
    SCOPED_TRACE(parallel::text_of(format));
    const CodecErrors none = here.measure(zeros, format).all;
    EXPECT_EQ(none.lost, 0);
    for (const double ratio : {none.relative_l2(), none.mean_relative(), none.relative_largest(),
                               none.cosine(), none.bias()}) {
      EXPECT_EQ(ratio, 0);
    }
    if (format.code == kernels::WireCode::maxmin) {
      EXPECT_EQ(here.measure(constant, format).all.relative_l2(), 0);
      EXPECT_NEAR(here.measure(constant, format).all.cosine(), 1, 1e-12);
    }
  }
  // The relative error of an all-zero input with nonzero output is infinite.
  const Floats nothing{0, 0};
  const Floats something{0, 1};
  EXPECT_EQ(parallel::compare(nothing, something).relative_l2(), HUGE_VAL);
}

TEST(CodecReport, ValuesThatAreNotFiniteAreCounted) {
  Case here;
  Floats x = gradient(1000);
  x[150] = kNan;
  x[151] = -kInf;
  x[520] = kInf;
  x[900] = 1e6F;
  for (const WireFormat& format : formats()) {
    SCOPED_TRACE(parallel::text_of(format));
    const CodecErrors all = here.measure(x, format).all;
    EXPECT_EQ(all.values, 1000);
    EXPECT_EQ(all.finite, 997);
    EXPECT_TRUE(all.compared() == 0 || std::isfinite(all.relative_l2()));
  }
  const auto lost = [&](const char* codec) { return here.measure(x, format_of(codec)).all.lost; };
  EXPECT_EQ(lost("fp32"), 0);
  EXPECT_EQ(lost("fp16"), 1);             // 10^6 is beyond 65504
  EXPECT_EQ(lost("maxmin:4:100"), 197);   // two buckets of 100, less what was lost before
  EXPECT_EQ(lost("dynamic8:1024"), 997);  // all
  const CodecErrors all = here.measure(x, format_of("dynamic8:1024")).all;
  EXPECT_TRUE(std::isnan(all.relative_l2()) && std::isnan(all.cosine()));
  EXPECT_EQ(parallel::compare(x, x).largest, 1e6);
}

TEST(CodecReport, SpeedsAreMeasured) {
  Case here;
  Floats x = gradient(100'000);
  parallel::CodecMeter meter(here.kernels, here.stream, view(x), {{0, 50'000}, {50'000, 50'000}});
  const CodecReport report = meter.measure(format_of("maxmin:4"), 0.02);
  for (const double speed : {report.speed.encode, report.speed.decode, meter.copy_speed(0.02)}) {
    EXPECT_GT(speed, 1e6);
    EXPECT_LT(speed, 1e13);
  }
  EXPECT_THROW(parallel::CodecMeter(here.kernels, here.stream, view(x), {{99'999, 2}}), Bug);
}

TEST(CodecValues, DrawnNumbersAreAFunctionOfTheSeed) {
  Arena arena;
  const auto draw = [&](const char* kind, int64_t count, uint64_t seed) {
    const auto drawn = train::synthetic_values(arena, kind, count, seed);
    const auto values = drawn.values.tensor().span<float>();
    return Floats(values.begin(), values.end());
  };
  std::set<Floats> different;
  for (const char* kind : {"normal", "heavy", "uniform"}) {
    const Floats all = draw(kind, 1000, 3);
    const Floats first = draw(kind, 10, 3);
    EXPECT_TRUE(std::equal(first.begin(), first.end(), all.begin())) << kind;
    different.insert({first, draw(kind, 10, 4)});
  }
  EXPECT_EQ(different.size(), 6U);
  // Mean of squares, and of fourth powers relative to it: 3 for normal numbers, 9/5 for uniform.
  const auto mean = [](const Floats& x, int power) {
    double sum = 0;
    for (const float value : x) {
      sum += std::pow(value, power);
    }
    return sum / static_cast<double>(x.size());
  };
  const Floats normal = draw("normal", 200'000, 1);
  EXPECT_NEAR(mean(normal, 2), 1, 0.02);
  EXPECT_NEAR(mean(normal, 4), 3, 0.1);
  const Floats uniform = draw("uniform", 200'000, 1);
  EXPECT_NEAR(mean(uniform, 1), 0.5, 0.005);
  EXPECT_NEAR(mean(uniform, 2), 1.0 / 3, 0.005);
  const Floats heavy = draw("heavy", 200'000, 1);
  EXPECT_GT(mean(heavy, 4), 100 * mean(heavy, 2) * mean(heavy, 2));
  EXPECT_NEAR(mean(heavy, 1), 0, 0.1);
}

struct CodecFiles : io::CheckpointTest {
  Arena arena;
  Floats values(const train::CheckpointChoice& choice, std::vector<std::string>& names) {
    const auto found = train::checkpoint_values(arena, path_, choice);
    names.clear();
    for (const auto& part : found.parts) {
      names.push_back(fmt::format("{} {}+{}", part.name, part.range.first, part.range.count));
    }
    names.push_back(found.kind);
    const auto all = found.values.tensor().span<float>();
    return {all.begin(), all.end()};
  }
};

TEST_F(CodecFiles, RawFilesAreReadAsTheirType) {
  const Floats numbers{1.5F, -2, 1e-30F, kNan};
  std::ofstream(folder_ / "f.bin", std::ios::binary)
      .write(reinterpret_cast<const char*>(numbers.data()), 16);
  const train::CodecValues floats = train::raw_values(arena, folder_ / "f.bin", DType::fp32);
  ASSERT_EQ(floats.values.tensor().count(), 4);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(floats.values.tensor().span<float>()[i]),
              std::bit_cast<uint32_t>(numbers[i]));
  }
  ASSERT_EQ(floats.parts.size(), 1U);
  EXPECT_EQ(floats.parts[0].range, (Range{0, 4}));
  const train::CodecValues halves = train::raw_values(arena, folder_ / "f.bin", DType::bf16);
  ASSERT_EQ(halves.values.tensor().count(), 8);
  EXPECT_EQ(halves.values.tensor().span<float>()[1], 1.5F);
  EXPECT_EQ(halves.values.tensor().span<float>()[3], -2.0F);
  std::ofstream(folder_ / "odd.bin") << "123456";
  std::ofstream(folder_ / "empty.bin") << "";
  const auto failure = [&](const char* name, DType dtype) {
    return failure_of([&] { train::raw_values(arena, folder_ / name, dtype); });
  };
  EXPECT_EQ(train::raw_values(arena, folder_ / "odd.bin", DType::bf16).values.tensor().count(), 3);
  io::expect_parts(failure("odd.bin", DType::fp32), {"odd.bin has 6 bytes", "not a multiple of 4"});
  io::expect_parts(failure("empty.bin", DType::fp32), {"empty.bin is empty"});
  io::expect_parts(failure("none.bin", DType::fp32), {"none.bin cannot be opened"});
}

/// In the example only "bits" has a first moment.
TEST_F(CodecFiles, MomentsWhereThereAreElseValues) {
  write(path_);
  std::vector<std::string> names;
  EXPECT_EQ(values({.pattern = "bits"}, names), moment_);
  EXPECT_EQ(names, (std::vector<std::string>{"bits 0+4", "moment1"}));
  EXPECT_EQ(values({}, names), (Floats{1.5F, -2, to_float(bits_[2]), to_float(bits_[3]), 0.25F,
                                       -0.5F, 3, 1, 2, 3, 4}));
  EXPECT_EQ(names, (std::vector<std::string>{"bits 0+4", "list 4+3", "norm.weight 7+4", "values"}));
  EXPECT_EQ(values({.pattern = "l*", .what = "values"}, names), list_);
  const auto failure = [&](const train::CheckpointChoice& choice) {
    return failure_of([&] { values(choice, names); });
  };
  io::expect_parts(failure({.what = "moment1"}), {"step-000007.h5", "no moment1 of \"list\""});
  io::expect_parts(failure({.pattern = "nothing.*"}), {"no parameter \"nothing.*\"", "inspect"});
}

}  // namespace
}  // namespace espalier::codec_report_test
