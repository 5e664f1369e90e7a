// The reader of HDF5 files (io/hdf5/reader.h): structures that only large files have. Damage:
// checkpoint_damage_test.cpp.
#include <unistd.h>

#include <filesystem>

#include "io/hdf5/bounded_file.h"
#include "io/hdf5/reader.h"
#include "tests/support/failure.h"

namespace espalier::io::hdf5::hdf5_reader_test {
namespace {

namespace fs = std::filesystem;

class Hdf5Reader : public ::testing::Test {
 protected:
  ~Hdf5Reader() override { fs::remove(path_); }
  const fs::path path_ =
      fs::temp_directory_path() / fmt::format("espalier-reader-{}.h5", ::getpid());
};

/// lookup3 of the author's own self-test (driver5): "Four score and seven years ago".
TEST_F(Hdf5Reader, TheChecksumIsLookup3) {
  const std::string text = "Four score and seven years ago";
  EXPECT_EQ(metadata_checksum({reinterpret_cast<const uint8_t*>(text.data()), text.size()}),
            0x17770551U);
  EXPECT_EQ(metadata_checksum({}), 0xdeadbeefU);
}

TEST_F(Hdf5Reader, ThousandsOfLinksAreRead) {
  // 0.9 MB of links: a heap of nested blocks, and trees of several levels.
  constexpr int kLinks = 6000;
  std::vector<std::string> names;
  {
    File file = File::create(path_, "test");
    file.make_group("/many");
    for (int i = 0; i < kLinks; ++i) {
      names.push_back(fmt::format("{:05}.{}", i * 7919 % kLinks, std::string(120, 'x')));
      file.make_group("/many/" + names.back());
    }
    file.finish();
  }
  const Reader reader(path_);
  EXPECT_EQ(reader.children("/many"), names) << "in the order of creation";
  EXPECT_TRUE(reader.exists("/many/" + names[4321]));
  EXPECT_FALSE(reader.exists("/many/other"));
  EXPECT_TRUE(reader.children("/many/" + names[1]).empty());
}

TEST_F(Hdf5Reader, ManyAttributesAreRead) {
  {
    File file = File::create(path_, "test");
    file.make_group("/g");
    for (int i = 0; i < 300; ++i) {
      file.set_text("/g", fmt::format("text{:03}", i), std::string(static_cast<size_t>(i), 'y'));
      file.set_integer("/g", fmt::format("number{:03}", i), i - 100);
    }
    file.set_integers("/g", "none", {});
    file.finish();
  }
  const Reader reader(path_);
  EXPECT_EQ(reader.attributes("/g").size(), 601U);
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(reader.text("/g", fmt::format("text{:03}", i)).size(), static_cast<size_t>(i));
    EXPECT_EQ(reader.integers("/g", fmt::format("number{:03}", i)), std::vector<int64_t>{i - 100});
  }
  EXPECT_TRUE(reader.integers("/g", "none").empty());
  EXPECT_THAT(failure_of([&] { reader.text("/g", "number000"); }), HasSubstr("single string"));
  EXPECT_THAT(failure_of([&] { reader.integers("/g", "text000"); }), HasSubstr("integers"));
  EXPECT_THAT(failure_of([&] { reader.text("/g", "other"); }), HasSubstr("no such attribute"));
}

}  // namespace
}  // namespace espalier::io::hdf5::hdf5_reader_test
