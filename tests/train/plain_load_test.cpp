// Plain HDF5 files of arrays become the weights and masks of a store.
#include "src/core/stream.h"
#include "src/train/checkpoint/snapshot.h"
#include "src/train/masks/mask_files.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"

namespace espalier::train::plain_load_test {
namespace {

TEST(PlainLoad, ReportsTheElementsReadForMasksAndValues) {
  const testing::TempDir dir;
  const auto load = [&](float first) {
    {
      io::PlainWriter writer(dir / "plain.h5");
      std::vector<float> w(16, 1);
      w[0] = first;
      writer.write("w", Shape{4, 4}, w);
      writer.write("b", Shape{4}, std::vector<float>{0, 1, 2, 3});
      writer.commit();
    }
    Arena arena;
    Stream stream(arena, 1);
    sparse::StoreOptions options{.training = false};
    options.storage = [](const std::string&) { return sparse::Storage::expanded; };
    sparse::Store store(
        stream, kernels::by_name("cpu"),
        {{.name = "w", .shape = Shape{4, 4}, .prunable = true}, {.name = "b", .shape = Shape{4}}},
        options);
    std::vector<int64_t> seen;
    load_plain(std::make_shared<io::PlainReader>(dir / "plain.h5"), store, {true, false},
               [&](int64_t done, int64_t total) {
                 EXPECT_EQ(total, 2 * (16 + 4));
                 seen.push_back(done);
               });
    EXPECT_EQ(store.total_kept(), first == 0 ? 19 : 20);
    EXPECT_EQ(store.values(store.find("b")), (std::vector<float>{0, 1, 2, 3}));
    return seen;
  };
  EXPECT_EQ(load(5), (std::vector<int64_t>{16, 20, 36, 40}));
  // The masks differ from those of the store, at the first one: all are read again.
  EXPECT_EQ(load(0), (std::vector<int64_t>{16, 16, 20, 36, 40}));
}

/// A network whose head is its embedding would lose the head of the file.
TEST(PlainLoad, AHeadThatATiedNetworkLacksEqualsTheEmbedding) {
  const testing::TempDir dir;
  const std::vector<sparse::ParameterSpec> tied{{.name = "embedding.token", .shape = Shape{2}}};
  std::vector<sparse::ParameterSpec> untied = tied;
  untied.push_back({.name = "head.weight", .shape = Shape{2}});
  const auto read = [&](float value, const std::vector<sparse::ParameterSpec>& network) {
    io::PlainWriter writer(dir / "plain.h5");
    writer.write("embedding.token", Shape{2}, std::vector<float>{1, 2});
    writer.write("head.weight", Shape{2}, std::vector<float>{1, value});
    writer.commit();
    check_nothing_left(io::PlainReader(dir / "plain.h5"), network);
  };
  EXPECT_NO_THROW(read(2, tied));
  EXPECT_NO_THROW(read(3, untied));
  EXPECT_THAT(failure_of([&] { read(3, tied); }),
              HasSubstr("head.weight differs from embedding.token, and the config ties them; set "
                        "model.tie_embeddings = false"));
}

}  // namespace
}  // namespace espalier::train::plain_load_test
