// espalier codec: random numbers, files, checkpoints of a run; wrong usage and damaged input.
#include <set>

#include "parallel/wire/codec.h"
#include "tests/support/program.h"

namespace espalier::cli_codec_test {
namespace {

using Json = nlohmann::json;

const std::string kQuick = " --seconds 0 ";

/// The row of a codec; null if missing.
Json row_of(const Json& found, const std::string& codec) {
  for (const Json& row : found["codecs"]) {
    if (row["codec"] == codec) {
      return row;
    }
  }
  return {};
}

std::string raw(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

using CodecCommand = ProgramTest;

TEST_F(CodecCommand, AllCodecsOnDrawnNumbers) {
  const Json found = here.ok("codec --synthetic normal --count 65536 --json" + kQuick).json();
  EXPECT_EQ(found["values"], 65536);
  EXPECT_EQ(found["not_finite"], 0);
  EXPECT_GT(found["memcpy_mb_s"].get<double>(), 0);
  std::set<std::string> measured;
  for (const Json& row : found["codecs"]) {
    measured.insert(parallel::parse_codec(row["codec"].get<std::string>()).name);
  }
  for (const parallel::Codec* codec : parallel::codecs()) {
    EXPECT_EQ(measured.contains(std::string(codec->name)),
              codec->kind == parallel::CodecKind::values)
        << codec->name;
  }
  for (const Json& row : found["codecs"]) {
    EXPECT_EQ(row["bits_per_value"].get<double>(), row["bytes"].get<double>() / 8192) << row;
    EXPECT_GT(row["encode_mb_s"].get<double>(), 0) << row;
    EXPECT_GT(row["decode_mb_s"].get<double>(), 0) << row;
    EXPECT_FALSE(row.contains("parameters"));
  }
  EXPECT_EQ(row_of(found, "fp32")["relative_l2"], 0);
  for (int bits = 1; bits <= 8; ++bits) {
    const int bucket = bits <= 4 ? 128 : 512;
    EXPECT_EQ(row_of(found, fmt::format("maxmin:{}:{}", bits, bucket))["bits_per_value"],
              bits + 64.0 / bucket);
  }
  EXPECT_EQ(row_of(found, "dynamic8:1024")["bits_per_value"], 8 + 32.0 / 1024);
  // Uniform rounding of numbers over 2 m in 15 steps: sqrt(1 / 12) 2 m / 15, m about 2.6 in 128.
  EXPECT_NEAR(row_of(found, "maxmin:4:128")["relative_l2"].get<double>(), 0.1, 0.01);
  const Ran text = here.ok("codec --synthetic normal --count 65536" + kQuick);
  for (const Json& row : found["codecs"]) {
    EXPECT_THAT(text.out, HasSubstr(fmt::format("\n{} ", row["codec"].get<std::string>())));
  }
  EXPECT_THAT(text.out, HasSubstr("\nmemcpy "));
  EXPECT_THAT(text.out, Not(HasSubstr("lost")));
}

TEST_F(CodecCommand, RequestedCodecsInTheirOrder) {
  const Ran ran = here.ok("codec --synthetic heavy --seed 7 --count 5000 --codec sign:100 " +
                          kQuick + "--json --codec table:3 linear8:256");
  std::vector<std::string> codecs;
  const Json found = ran.json();
  for (const Json& row : found["codecs"]) {
    codecs.push_back(row["codec"]);
  }
  EXPECT_EQ(codecs, (std::vector<std::string>{"sign:100", "table:3", "linear8:256"}));
  EXPECT_EQ(found["codecs"][0]["bytes"], 625 + 50 * 4);
}

TEST_F(CodecCommand, AFileOfNumbers) {
  here.write("g.bin", raw({1, -2, 0, 0.25F}));
  const std::string codec = "codec --json --file g.bin --codec fp32 bf16 maxmin:8" + kQuick;
  const Json found = here.run(codec).json();
  EXPECT_EQ(found["values"], 4);
  EXPECT_EQ(found["zeros"], 1);
  EXPECT_EQ(found["largest"], 2);
  EXPECT_EQ(found["kind"], "fp32");
  EXPECT_EQ(row_of(found, "bf16")["relative_l2"], 0);
  EXPECT_EQ(row_of(found, "maxmin:8:512")["bytes"], 8 + 4);
  EXPECT_EQ(here.run(codec + "--dtype bf16").json()["values"], 8);
}

TEST_F(CodecCommand, NanIsSaidAndCounted) {
  std::vector<float> values(2000, 0.5F);
  values[3] = std::stof("nan");
  values[4] = std::stof("inf");
  values[1500] = 1e6F;
  here.write("g.bin", raw(values));
  const std::string codec = "codec --file g.bin --codec fp32 fp16 dynamic8:1000" + kQuick;
  const Ran text = here.ok(codec);
  EXPECT_THAT(text.out, HasSubstr("2 values are NaN or infinite"));
  EXPECT_THAT(text.out, HasSubstr("lost"));
  const Json found = here.run(codec + "--json").json();
  EXPECT_EQ(found["not_finite"], 2);
  EXPECT_EQ(row_of(found, "fp32")["lost"], 0);
  EXPECT_EQ(row_of(found, "fp16")["lost"], 1);
  EXPECT_EQ(row_of(found, "dynamic8:1000")["lost"], 998);
  EXPECT_TRUE(row_of(found, "dynamic8:1000")["relative_l2"].is_number());
  here.write("nan.bin", raw({values[3]}));
  EXPECT_TRUE(row_of(here.ok("codec --file nan.bin --json" + kQuick).json(), "fp32")["relative_l2"]
                  .is_null());
  here.ok("codec --file nan.bin" + kQuick);
}

TEST_F(CodecCommand, ACheckpointByParameter) {
  here.ok("train c.toml");
  const std::string codec = "codec --json --checkpoint " + kLast + kQuick;
  const Json inspected = here.run("inspect --json " + kLast).json();
  const Json found = here.run(codec + "--by-parameter --codec maxmin:4 dynamic8").json();
  EXPECT_EQ(found["kind"], "moment1");
  EXPECT_EQ(found["values"], inspected["kept_parameters"]);
  EXPECT_EQ(found["messages"], inspected["arrays"].size());
  for (const Json& row : found["codecs"]) {
    const bool four = row["codec"] == "maxmin:4:128";
    ASSERT_EQ(row["parameters"].size(), inspected["arrays"].size());
    int64_t bytes = 0;
    for (size_t p = 0; p < row["parameters"].size(); ++p) {
      const Json& parameter = row["parameters"][p];
      const auto kept = inspected["arrays"][p]["kept"].get<int64_t>();
      EXPECT_EQ(parameter["name"], inspected["arrays"][p]["name"]);
      EXPECT_EQ(parameter["values"], kept);
      EXPECT_EQ(parameter["bytes"], four ? (kept + 1) / 2 + 8 * ((kept + 127) / 128)
                                         : kept + 4 * ((kept + 1023) / 1024));
      bytes += parameter["bytes"].get<int64_t>();
    }
    EXPECT_EQ(row["bytes"], bytes);
  }
  const Ran text = here.ok("codec --checkpoint " + kLast + " --by-parameter --codec maxmin:4" +
                           kQuick + "--parameter 'blocks.1.mlp*'");
  EXPECT_THAT(text.out, HasSubstr("\nblocks.1.mlp.expand.weight "));
  EXPECT_THAT(text.out, Not(HasSubstr("blocks.0")));
  // Weights have other statistics; a file of weights alone has only these.
  const Json values = here.run(codec + "--what values").json();
  EXPECT_EQ(values["kind"], "values");
  EXPECT_NE(values["largest"], found["largest"]);
  here.ok("prune " + kLast + " -o p.h5 --method magnitude --sparsity 0.9");
  EXPECT_EQ(here.run("codec --json --checkpoint p.h5" + kQuick).json()["kind"], "values");
  here.fails("codec --checkpoint p.h5 --what moment1" + kQuick, 1, "no moment1");
  here.fails(codec + "--parameter 'no.such.*'", 1, "no.such.*");
  std::filesystem::resize_file(here / kLast, 1000);
  here.fails(codec, 1, "step-000020.h5");
}

TEST_F(CodecCommand, WrongUsageAndInput) {
  here.write("g.bin", raw({1, 2}));
  here.write("odd.bin", "12345");
  for (const auto& [arguments, words] :
       Rows{{"", "--synthetic"},
            {"--file g.bin --codec nope", "unknown codec \"nope\": use one of fp32"},
            {"--file g.bin --codec maxmin:9", "allowed: 1 .. 8"},
            {"--file g.bin --codec adaptive", "does not encode single values"},
            {"--file g.bin --codec topk:0.1:100000", "65536"},
            {"--file g.bin --synthetic normal", "excludes"},
            {"--file g.bin --dtype fp64", "fp64"},
            {"--synthetic cauchy", "cauchy"},
            {"--synthetic normal --count 0", "--count"},
            {"--synthetic normal --dtype bf16", "--dtype"},
            {"--synthetic normal --seconds nan", "--seconds"},
            {"--checkpoint c.h5 --by-parameter", "--codec"}}) {
    here.fails("codec " + arguments, 2, words);
  }
  here.fails("codec --file none.bin", 1, "none.bin cannot be opened");
  here.fails("codec --file odd.bin", 1, "odd.bin has 5 bytes, not a multiple of 4");
  here.fails("codec --checkpoint g.bin", 1, "g.bin");
  here.fails("codec --checkpoint none.h5", 1, "none.h5");
  expect_error(here.shell("ESPALIER_KERNELS=dry " ESPALIER_PROGRAM " codec --file g.bin"), 1,
               "encodes nothing");
}

}  // namespace
}  // namespace espalier::cli_codec_test
