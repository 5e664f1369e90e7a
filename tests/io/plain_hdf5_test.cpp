// Plain HDF5 files: reads files written by h5py (tests/data/make_plain_hdf5.py and make_hdf5_2.py
// wrote the examples), and writes files that it can read back.
#include "io/checkpoint/plain_hdf5.h"

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "src/core/error.h"
#include "tests/support/failure.h"

namespace espalier::io::plain_hdf5_test {
namespace {

namespace fs = std::filesystem;

TEST(PlainHdf5, FilesOfH5pyComeIn) {
  const PlainReader reader(fs::path(ESPALIER_SOURCE_DIR) / "tests/data/plain_hdf5.h5");
  EXPECT_EQ(reader.names(),
            (std::vector<std::string>{"a", "again", "big_endian", "deep.double", "deep.er.half",
                                      "deep.loop.half", "five", "long", "scalar"}));
  EXPECT_EQ(reader.skipped(), (std::vector<std::string>{"step", "text"}));
  EXPECT_EQ(reader.shape("a"), (Shape{3, 2}));
  EXPECT_EQ(reader.read("a"), (std::vector<float>{1.5F, 0, 0, -2, 0.25F, 0}));
  EXPECT_EQ(reader.read("again"), reader.read("a")) << "a soft link";
  EXPECT_EQ(reader.read("deep.er.half"), (std::vector<float>{0.5F, 65504, 0, 0x1p-24F}));
  EXPECT_EQ(reader.read("deep.double")[0], 1.0F / 3.0F);
  EXPECT_TRUE(std::isinf(reader.read("deep.double")[1]));
  EXPECT_EQ(reader.read("long")[999], 999.0F);
  EXPECT_EQ(reader.read("big_endian"), (std::vector<float>{1, 2}));
  EXPECT_EQ(reader.shape("scalar").rank(), 0);
  EXPECT_EQ(reader.read("scalar"), std::vector<float>{7});
  EXPECT_THAT(failure_of([&] { reader.shape("five"); }), HasSubstr("5 dimensions"));
  EXPECT_THAT(failure_of([&] { reader.read("step"); }), HasSubstr("no floating-point dataset"));
}

TEST(PlainHdf5, FilesOfHdf5Version2ComeIn) {
  const PlainReader reader(fs::path(ESPALIER_SOURCE_DIR) / "tests/data/hdf5_2.h5");
  std::vector<float> values(40);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i) / 4;
  }
  for (const auto& [name, type] : std::map<std::string, DType>{{"filtered.extensible", DType::fp16},
                                                               {"filtered.fixed", DType::fp16},
                                                               {"filtered.single", DType::fp16},
                                                               {"filtered.tree", DType::fp16},
                                                               {"plain.contiguous", DType::fp16},
                                                               {"plain.extensible", DType::fp16},
                                                               {"plain.fixed", DType::fp16},
                                                               {"plain.implicit", DType::fp16},
                                                               {"plain.single", DType::fp16},
                                                               {"plain.tree", DType::fp16},
                                                               {"types.bf16", DType::bf16},
                                                               {"types.big", DType::fp16},
                                                               {"types.double", DType::fp32},
                                                               {"types.single", DType::fp32}}) {
    EXPECT_EQ(reader.shape(name), (Shape{8, 5})) << name;
    EXPECT_EQ(reader.read(name), values) << name;
    EXPECT_EQ(reader.type(name), type) << name;
  }
  EXPECT_EQ(reader.skipped(), (std::vector<std::string>{"types.bool", "types.complex"}));
  EXPECT_THAT(
      failure_of([&] { reader.read("types.long"); }),
      HasSubstr("floats of 16 bytes in a form that is not read, such as longdouble; write"));
  EXPECT_THAT(failure_of([&] { reader.read("types.opaque"); }),
              HasSubstr("opaque bytes, as h5py writes bfloat16 and float8 of ml_dtypes; write"));
}

TEST(PlainHdf5, WhatGoesOutComesBack) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("espalier-plain-{}", ::getpid());
  const fs::path path = folder / "out.h5";
  const std::vector<float> values{1, 2, 0, 4};
  {
    PlainWriter writer(path);
    writer.write("blocks.0.w", Shape{2, 2}, values);
    writer.commit();
  }
  { PlainWriter dropped(folder / "dropped.h5"); }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1) << "only what was committed";
  const PlainReader reader(path);
  EXPECT_EQ(reader.names(), std::vector<std::string>{"blocks.0.w"});
  EXPECT_EQ(reader.shape("blocks.0.w"), (Shape{2, 2}));
  EXPECT_EQ(reader.read("blocks.0.w"), values);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace espalier::io::plain_hdf5_test
