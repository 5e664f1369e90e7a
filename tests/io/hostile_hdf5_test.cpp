// HDF5 files from anywhere (tests/data/make_hostile_hdf5.py wrote them): refused by name, at once,
// without reading another file and without memory for more than they hold.
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/plain_hdf5.h"
#include "tests/support/failure.h"

namespace espalier::io::hostile_hdf5_test {
namespace {

std::filesystem::path example(const std::string& name) {
  return std::filesystem::path(ESPALIER_SOURCE_DIR) / "tests/data" / ("hostile_" + name + ".h5");
}

TEST(HostileHdf5, DataElsewhereOrNeverWrittenAreRefused) {
  for (const auto& [name, words] :
       std::vector<std::pair<std::string, std::string>>{{"external", "stored in another file"},
                                                        {"virtual", "stored in another file"},
                                                        {"gzip", "more than the file has"},
                                                        {"unwritten", "more than the file has"},
                                                        {"szip", "has the filter"}}) {
    const PlainReader reader(example(name));
    const std::string error = failure_of([&] { reader.read("w"); });
    EXPECT_THAT(error, AllOf(HasSubstr(example(name).string()), HasSubstr("/w"), HasSubstr(words)));
    // A reader that knows the name gets no further.
    const hdf5::Reader file(example(name));
    EXPECT_THAT(failure_of([&] { file.describe("/w"); }), HasSubstr(words));
    std::vector<std::byte> values(16);
    EXPECT_THAT(failure_of([&] { file.read("/w", hdf5::Type::fp32, values); }), HasSubstr(words));
  }
}

TEST(HostileHdf5, ChunksAreRead) {
  const PlainReader reader(example("chunks"));
  EXPECT_EQ(reader.read("w"), std::vector<float>(8));
}

TEST(HostileHdf5, LinksToOtherFilesAreNotFollowed) {
  const PlainReader reader(example("external_link"));
  EXPECT_TRUE(reader.names().empty());
  EXPECT_EQ(reader.skipped(), std::vector<std::string>{"w (link to another file)"});
  EXPECT_THAT(failure_of([&] { reader.shape("w"); }),
              HasSubstr("w cannot be used: it is a link to another file; store"));
  const hdf5::Reader file(example("external_link"));
  for (const auto& visit : std::vector<std::function<void()>>{
           [&] { file.describe("/w"); }, [&] { file.children("/w"); },
           [&] { file.attributes("/w"); }, [&] { file.text("/w", "a"); },
           [&] { file.integers("/w", "a"); }}) {
    EXPECT_THAT(failure_of(visit), HasSubstr("/w is an external link"));
  }
}

TEST(HostileHdf5, SoftLinksStayInTheFile) {
  EXPECT_EQ(PlainReader(example("soft_link")).read("w"), std::vector<float>(2));
  const PlainReader circles(example("soft_circles"));
  EXPECT_EQ(circles.names(), (std::vector<std::string>{"g.w", "s.w"}));
  EXPECT_THAT(failure_of([] { hdf5::Reader(example("soft_circles")).describe("/a"); }),
              HasSubstr("no such object"));
}

TEST(HostileHdf5, AChunkHoldsWhatItClaims) {
  EXPECT_THAT(failure_of([] { PlainReader(example("bomb")).read("w"); }),
              ::testing::AnyOf(HasSubstr("more than the file has"), HasSubstr("claims more"),
                               HasSubstr("deflate stream")));
  EXPECT_THAT(failure_of([] { PlainReader(example("bad_checksum")).read("w"); }),
              HasSubstr("a chunk has a wrong checksum"));
}

TEST(HostileHdf5, GroupsWithCountlessPathsEnd) {
  EXPECT_THAT(failure_of([] { PlainReader reader(example("many_links")); }),
              HasSubstr("more paths than a file of this size has links"));
}

TEST(HostileHdf5, ADatasetOfManyNamesIsNotReadThatOften) {
  EXPECT_THAT(failure_of([] { PlainReader reader(example("many_names")); }),
              HasSubstr("stand for more than 1032 times the bytes of the file"));
}

TEST(HostileHdf5, LayersMayShareADataset) {
  const PlainReader reader(example("shared"));
  EXPECT_EQ(reader.names().size(), 24U);
  for (const std::string& name : reader.names()) {
    EXPECT_EQ(reader.read(name)[4095], 4095) << name;
  }
  EXPECT_EQ(reader.skipped(),
            (std::vector<std::string>{"empty", "w_mask (link that leads nowhere)"}));
  EXPECT_EQ(reader.loose_masks(), std::vector<std::string>{"w_mask"});
  EXPECT_THAT(failure_of([&] { reader.shape("empty"); }), HasSubstr("it has no elements"));
}

TEST(HostileHdf5, AShapeFitsTheFile) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / fmt::format("espalier-shape-{}.h5", ::getpid());
  CheckpointWriter writer(path);
  writer.write_meta({});
  float value = 1;
  const std::vector<uint8_t> index(4);
  for (const auto& [name, rows] : {std::pair{"small", 1024}, {"large", 1 << 22}}) {
    writer.write_parameter({.name = name,
                            .shape = Shape{rows, 1024},
                            .encoding = "int32",
                            .nnz = 1,
                            .values = Tensor(&value, DType::fp32, Shape{1}),
                            .index = index});
  }
  writer.commit();
  const CheckpointReader reader(path);
  EXPECT_EQ(reader.info("small").shape.count(), 1 << 20);
  EXPECT_THAT(failure_of([&] { reader.info("large"); }),
              HasSubstr("shape [4194304, 1024] of /params/large is impossible in a file of"));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace espalier::io::hostile_hdf5_test
