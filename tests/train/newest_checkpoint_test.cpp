// The ranks of a run verify a checkpoint together: damage in any part of it is found by all.
#include "src/train/run/newest_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "src/train/run/trainer.h"
#include "tests/support/support.h"

namespace espalier::testing::newest_checkpoint_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// A run with checkpoints of steps 4 and 8.
fs::path make_checkpoints(const TempDir& dir) {
  io::Config config = tiny_config(dir);
  config.train.steps = 8;
  config.train.checkpoint_every = 4;
  config.train.keep_checkpoints = 2;
  parallel::run_ranks(1, [&](parallel::Communicator& comm) {
    train::Trainer(config, comm, {.resume = "none"}).run();
  });
  return fs::path(config.run.out) / "checkpoints";
}

/// Flips a bit of the first value of a dataset.
void damage(const fs::path& file, const std::string& name) {
  const io::CheckpointReader reader(file);
  std::vector<float> values(static_cast<size_t>(reader.info(name).nnz));
  reader.optimizer(name, "moment1",
                   Tensor(values.data(), DType::fp32, Shape{reader.info(name).nnz}));
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  const std::string wanted(reinterpret_cast<const char*>(values.data()), 4 * values.size());
  const size_t at = bytes.find(wanted);
  ASSERT_NE(at, std::string::npos) << "raw values stand in the file as they are in memory";
  stream.seekp(static_cast<std::streamoff>(at));
  stream.put(static_cast<char>(bytes[at] ^ 1));
}

io::NewestIntact newest(const fs::path& folder, int ranks) {
  io::NewestIntact found;
  parallel::run_ranks(ranks, [&](parallel::Communicator& comm) {
    io::NewestIntact mine = train::newest_intact_checkpoint(folder, comm);
    if (comm.rank() == 0) {
      found = std::move(mine);
    } else {
      EXPECT_FALSE(mine.file);
    }
  });
  return found;
}

TEST(NewestCheckpoint, DamageInAnyPartIsFound) {
  const TempDir dir;
  const fs::path folder = make_checkpoints(dir);
  const fs::path last = folder / "step-000008.h5";
  const std::vector<std::string> names = io::CheckpointReader(last).names();
  ASSERT_GE(names.size(), 3U);
  fs::copy(last, dir / "intact.h5");
  for (const int ranks : {1, 2, 3}) {
    EXPECT_EQ(newest(folder, ranks).file, last);
    for (const std::string& name : {names.front(), names[names.size() / 2], names.back()}) {
      damage(last, name);
      const io::NewestIntact found = newest(folder, ranks);
      EXPECT_EQ(found.file, folder / "step-000004.h5") << ranks << " ranks, " << name;
      ASSERT_EQ(found.skipped.size(), 1U);
      EXPECT_THAT(found.skipped[0], HasSubstr(name));
      fs::copy_file(dir / "intact.h5", last, fs::copy_options::overwrite_existing);
    }
  }
}

TEST(NewestCheckpoint, AFolderWithoutCheckpointsHasNone) {
  const TempDir dir;
  const io::NewestIntact found = newest(dir / "missing", 2);
  EXPECT_FALSE(found.file);
  EXPECT_TRUE(found.skipped.empty());
}

}  // namespace
}  // namespace espalier::testing::newest_checkpoint_test
