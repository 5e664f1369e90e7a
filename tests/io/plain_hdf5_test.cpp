// Plain HDF5 files: reads files written by h5py (tests/data/make_plain_hdf5.py and make_hdf5_2.py
// wrote the examples), and writes files that it can read back.
#include "io/checkpoint/plain_hdf5.h"

#include <unistd.h>

#include <algorithm>
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
                                      "deep.loop.half", "long", "scalar"}));
  EXPECT_EQ(reader.skipped(), (std::vector<std::string>{"five", "step", "text"}));
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
  EXPECT_THAT(failure_of([&] { reader.read("step"); }),
              HasSubstr("step cannot be used: it holds integers of 8 bytes; write"));
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

class PlainMasks : public ::testing::Test {
 protected:
  void TearDown() override { fs::remove(path_); }
  /// A file of arrays [2, 2] and of one mask, at these paths.
  PlainReader file(const std::vector<std::string>& arrays, const std::string& mask,
                   hdf5::Type type = hdf5::Type::fp32, const LeftOut& left_out = {}) {
    auto out = hdf5::File::create(path_, "file");
    const std::vector<float> values{1, 2, 3, 4};
    const std::vector<int64_t> extents{2, 2};
    const auto place = [&](const std::string& name) {
      for (size_t at = name.find('/'); at != std::string::npos; at = name.find('/', at + 1)) {
        if (!out.exists("/" + name.substr(0, at))) {
          out.make_group("/" + name.substr(0, at));
        }
      }
      return "/" + name;
    };
    for (const std::string& array : arrays) {
      const std::string name = place(array);
      type == hdf5::Type::fp32 ? out.write(name, type, extents, values.data())
                               : out.write(name, type, extents, bytes_.data());
    }
    out.write(place(mask), hdf5::Type::uint8, extents, bytes_.data());
    out.finish();
    return PlainReader(path_, left_out);
  }

 private:
  const fs::path path_ =
      fs::temp_directory_path() / fmt::format("espalier-masks-{}.h5", ::getpid());
  const std::vector<uint8_t> bytes_{0, 1, 1, 0};
};

TEST_F(PlainMasks, AreFoundByTheirNamesWithoutCase) {
  using Names = std::vector<std::string>;
  for (const auto& [arrays, mask] :
       std::vector<std::pair<Names, std::string>>{{{"a.weight"}, "a.weight_mask"},
                                                  {{"a.weight"}, "a.Weight_Mask"},
                                                  {{"a.weight"}, "a/mask"},
                                                  {{"a.weight"}, "A.MASK"},
                                                  {{"a.weight"}, "masks/a/weight"},
                                                  {{"a.weight"}, "pruning_masks/a/weight"},
                                                  {{"params/a.weight"}, "masks/a.weight"},
                                                  {{"params/a.weight"}, "PruningMasks/a/weight"},
                                                  {{"state/net/a.weight"}, "masks/a/weight"},
                                                  {{"a/weight", "b/weight"}, "a_mask/weight"},
                                                  {{"W", "w"}, "W_mask"},
                                                  {{"A.w", "a.W", "a.w"}, "masks/A.w"},
                                                  {{"A_orig", "a_orig"}, "A_MASK"}}) {
    const PlainReader reader = file(arrays, mask);
    const std::string weight = reader.names().front();
    EXPECT_EQ(reader.masks().size(), 1U) << mask;
    EXPECT_TRUE(reader.loose_masks().empty()) << mask;
    EXPECT_EQ(reader.kept(weight), (std::vector<uint8_t>{0, 1, 1, 0})) << mask;
    EXPECT_EQ(reader.read(weight), (std::vector<float>{0, 2, 3, 0})) << mask;
  }
}

TEST_F(PlainMasks, OfNoArrayAreNamed) {
  using Names = std::vector<std::string>;
  for (const std::string mask :
       {"a.kernel_mask", "masks/a/kernel", "a_masks/kernel", "mask0", "WeightMask", "mask_of_a"}) {
    std::string name = mask;
    std::ranges::replace(name, '/', '.');
    EXPECT_EQ(file({"a.weight"}, mask).loose_masks(), Names{name});
    const auto is_mask = [&](const std::string& other) { return other == name; };
    const PlainReader without = file({"a.weight"}, mask, hdf5::Type::fp32, is_mask);
    EXPECT_TRUE(without.loose_masks().empty()) << mask;
    EXPECT_TRUE(without.skipped().empty()) << mask;
  }
  for (const std::string other : {"a.masked_bias", "a.unmasked", "maskformer.w"}) {
    EXPECT_TRUE(file({"a.weight"}, other).loose_masks().empty()) << other;
  }
  // Of an array that cannot be used.
  const PlainReader bytes = file({"a.weight"}, "a.weight_mask", hdf5::Type::uint8);
  EXPECT_EQ(bytes.loose_masks(), Names{"a.weight_mask"});
  EXPECT_THAT(failure_of([&] { bytes.shape("a.weight"); }),
              HasSubstr("a.weight cannot be used: it holds integers of 1 byte; write"));
  EXPECT_THAT(failure_of([&] { file({"a.weight_orig"}, "b").shape("a.weight"); }),
              HasSubstr("there is no a.weight_mask; store a.weight_mask, or rename"));
}

TEST(PlainHdf5, MasksThatKeepTheZerosOnlyAreRefused) {
  const fs::path path = fs::temp_directory_path() / fmt::format("espalier-inv-{}.h5", ::getpid());
  const auto kept = [&](const std::vector<float>& values, const std::vector<uint8_t>& mask) {
    auto out = hdf5::File::create(path, "file");
    const std::vector<int64_t> extents{4};
    out.write("/w", hdf5::Type::fp32, extents, values.data());
    out.write("/w_mask", hdf5::Type::uint8, extents, mask.data());
    out.finish();
    return PlainReader(path).kept("w");
  };
  using Bytes = std::vector<uint8_t>;
  EXPECT_THAT(failure_of([&] {
                kept({1, 0, 0, 2}, {0, 1, 1, 0});
              }),
              HasSubstr("w_mask, the mask of w, keeps its zeros, and nothing else"));
  EXPECT_EQ(kept({1, 0, 0, 2}, {1, 1, 1, 0}), (Bytes{1, 1, 1, 0}));
  EXPECT_EQ(kept({1, 0, 0, 0}, {0, 1, 1, 0}), (Bytes{0, 1, 1, 0}));
  EXPECT_EQ(kept({0, 0, 0, 0}, {1, 1, 1, 1}), (Bytes{1, 1, 1, 1}));
  EXPECT_EQ(kept({1, 2, 3, 4}, {0, 0, 0, 0}), (Bytes{0, 0, 0, 0}));
  fs::remove(path);
}

class NamedLikeMasks : public ::testing::Test {
 protected:
  void TearDown() override { fs::remove(path_); }
  PlainReader file(const std::vector<std::pair<std::string, std::vector<int64_t>>>& arrays,
                   hdf5::Type type = hdf5::Type::fp32) {
    auto out = hdf5::File::create(path_, "file");
    for (const auto& [name, extents] : arrays) {
      const std::vector<double> ones(4096, 1);
      out.write("/" + name, type, extents, ones.data());
    }
    out.finish();
    return PlainReader(path_);
  }

 private:
  const fs::path path_ =
      fs::temp_directory_path() / fmt::format("espalier-named-{}.h5", ::getpid());
};

TEST_F(NamedLikeMasks, ParametersAreArrays) {
  for (const std::string name :
       {"vit.mask_token", "Mask_Tokens.weight", "mask_emb", "sam.mask_decoder.0.weight"}) {
    const PlainReader reader = file({{"w", {4, 2}}, {name, {1, 1, 8}}});
    EXPECT_TRUE(reader.loose_masks().empty()) << name;
    EXPECT_EQ(reader.shape(name), (Shape{1, 1, 8})) << name;
  }
  // A mask of "token", and masks of such parameters.
  EXPECT_EQ(file({{"token", {1, 8}}, {"mask_token", {1, 8}}}).loose_masks().size(), 1U);
  EXPECT_TRUE(file({{"token", {1, 9}}, {"mask_token", {1, 8}}}).loose_masks().empty());
  const PlainReader masked = file({{"mask_token", {2, 8}}, {"mask_token_mask", {2, 8}}});
  EXPECT_EQ(masked.masks().at("mask_token_mask"), "mask_token");
  EXPECT_EQ(file({{"mask_token.kernel_mask", {2, 8}}}).loose_masks().size(), 1U);
}

TEST_F(NamedLikeMasks, MasksOfPositionsAreSkippedWhereNoArrayHasTheirShape) {
  for (const hdf5::Type type : {hdf5::Type::fp32, hdf5::Type::uint8}) {
    for (const std::string name : {"h.0.attn_mask", "h.0.attention.mask", "Causal_Mask",
                                   "attention_mask", "key_padding_mask"}) {
      const auto reader_of = [&](const std::vector<int64_t>& mask, const std::string& weight) {
        return file({{weight, {6, 8}}, {name, mask}}, type);
      };
      for (const std::vector<int64_t>& mask :
           std::vector<std::vector<int64_t>>{{5, 5}, {1, 1, 5, 5}, {1, 5}, {64, 9, 9}}) {
        const PlainReader reader = reader_of(mask, "w");
        EXPECT_TRUE(reader.loose_masks().empty()) << name;
        EXPECT_THAT(reader.skipped(),
                    ::testing::Contains(name + " (masks positions, not weights)"));
        EXPECT_THAT(failure_of([&] { reader.read(name); }), HasSubstr("it masks positions"));
        // Also beside a weight of its name, of another shape.
        EXPECT_TRUE(reader_of(mask, name.substr(0, name.size() - 5)).masks().empty()) << name;
      }
      if (type == hdf5::Type::uint8) {
        continue;  // no weights
      }
      // Shapes of a mask of "w": its own, transposed, flat, of its rows or columns.
      for (const std::vector<int64_t>& mask :
           std::vector<std::vector<int64_t>>{{6, 8}, {8, 6}, {1, 48}, {6, 1}, {1, 8}, {8}, {5}}) {
        EXPECT_EQ(reader_of(mask, "w").loose_masks(), std::vector<std::string>{name});
      }
      EXPECT_EQ(reader_of({6, 8}, name.substr(0, name.size() - 5)).masks().size(), 1U) << name;
    }
  }
  for (const std::string name : {"mask", "h.0.head_mask", "h.0.attn_mask_of_rows"}) {
    EXPECT_EQ(file({{"w", {6, 8}}, {name, {5, 5}}}).loose_masks(), std::vector<std::string>{name});
  }
}

/// Pairs, and masks of no array, of so many layers that comparing all with all would take minutes.
TEST(PlainMasksOfManyLayers, ArePairedByTheirNames) {
  constexpr int kLayers = 12'000;
  const fs::path path = fs::temp_directory_path() / fmt::format("espalier-many-{}.h5", ::getpid());
  {
    auto out = hdf5::File::create(path, "file");
    const std::vector<int64_t> extents{1, 2};
    const std::vector<float> values{1, 2};
    const std::vector<uint8_t> mask{0, 1};
    const std::vector<uint8_t> zeros(300);
    for (const std::string group : {"a", "b", "masks"}) {
      out.make_group("/" + group);
    }
    for (int i = 0; i < kLayers; ++i) {
      const std::string name = fmt::format("{}.weight", i);
      out.write("/a/" + name, hdf5::Type::fp32, extents, values.data());
      const std::string of = i % 3 == 0   ? "/a/" + name + "_mask"
                             : i % 3 == 1 ? "/masks/" + name
                                          : fmt::format("/b/{}.attn_mask", i);
      const std::vector<int64_t> positions{3, 3 + i % 97};
      const bool weights = i % 3 != 2;
      out.write(of, hdf5::Type::uint8, weights ? extents : positions,
                weights ? mask.data() : zeros.data());
    }
    out.finish();
  }
  const PlainReader reader(path);
  EXPECT_EQ(reader.masks().size(), 2U * kLayers / 3);
  EXPECT_EQ(reader.skipped().size(), kLayers / 3);
  EXPECT_EQ(reader.read("a.1.weight"), (std::vector<float>{0, 2}));
  fs::remove(path);
}

TEST(PlainHdf5, ColumnsAreOrderedAfterTheTransposition) {
  const fs::path path = fs::temp_directory_path() / fmt::format("espalier-turn-{}.h5", ::getpid());
  // Theirs is [columns, out]: columns (channel, position) of 2 channels and 3 positions, out 2.
  const std::vector<float> theirs{0, 100, 1, 101, 2, 102, 10, 110, 11, 111, 12, 112};
  PlainWriter writer(path);
  writer.write("w", Shape{6, 2}, theirs);
  writer.commit();
  PlainReader reader(path);
  reader.set_views({{"p",
                     {.shape = Shape{2, 6},
                      .parts = {{.array = "w", .rows = 2, .transposed = true, .channels = 2}}}}});
  EXPECT_EQ(reader.read("p"),
            (std::vector<float>{0, 10, 1, 11, 2, 12, 100, 110, 101, 111, 102, 112}));
  fs::remove(path);
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
