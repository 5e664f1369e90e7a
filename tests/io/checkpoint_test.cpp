// Checkpoints: round trips, atomic replacement, and the folder that holds them.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "io/files/folders.h"
#include "io/hdf5/reader.h"
#include "tests/io/checkpoint_example.h"

namespace espalier::io::checkpoint_test {
namespace {

namespace fs = std::filesystem;

TEST_F(CheckpointTest, GivesBackWhatWasWritten) {
  write(path_);
  const CheckpointReader reader(path_);
  const CheckpointMeta meta = reader.meta();
  EXPECT_EQ(meta.step, 7);
  EXPECT_EQ(meta.config, "[train]\nsteps = 9\n");
  EXPECT_EQ(meta.extra.at("vocabulary"), "0a20");
  EXPECT_EQ(meta.extra.at("empty"), "");
  EXPECT_EQ(reader.names(), (std::vector<std::string>{"bits", "list", "norm.weight"}));

  const StoredParameter info = reader.info("bits");
  EXPECT_EQ(info.shape, (Shape{3, 5}));
  EXPECT_EQ(info.encoding, "bitmap");
  EXPECT_EQ(info.nnz, 4);
  EXPECT_EQ(info.dtype, DType::bf16);
  EXPECT_EQ(info.value_bytes, 8U);
  EXPECT_EQ(info.index_bytes, 8U);
  EXPECT_EQ(info.optimizer, (std::vector<std::string>{"master", "moment1"}));
  EXPECT_EQ(reader.index("bits"), bits_index_);
  std::vector<bf16> bits(4);
  reader.values("bits", tensor(bits));
  EXPECT_EQ(bits, bits_);
  std::vector<float> widened(4);
  reader.values("bits", tensor(widened));
  EXPECT_EQ(widened[2], to_float(bits_[2]));

  std::vector<float> list(3);
  reader.values("list", tensor(list));
  EXPECT_EQ(list, list_);
  std::vector<int32_t> index(3);
  std::memcpy(index.data(), reader.index("list").data(), 12);
  EXPECT_EQ(index, list_index_);
  std::vector<bf16> narrowed(3);
  reader.values("list", tensor(narrowed));
  EXPECT_EQ(narrowed[2], to_bf16(3.0F));

  EXPECT_TRUE(reader.index("norm.weight").empty());
  EXPECT_TRUE(reader.has_optimizer("bits"));
  EXPECT_FALSE(reader.has_optimizer("bits", "moment2"));
  EXPECT_FALSE(reader.has_optimizer("list"));
  std::vector<float> moment(4);
  reader.optimizer("bits", "moment1", tensor(moment));
  EXPECT_EQ(moment, moment_);
  expect_parts(failure_of([&] { reader.info("blocks.0"); }), {path_.string(), "blocks.0"});
  expect_parts(failure_of([&] { reader.optimizer("bits", "moment2", tensor(moment)); }),
               {"/optim/bits/moment2", "missing"});
}

TEST_F(CheckpointTest, FilesAreEqualBitForBitAndEmptyTensorsFit) {
  const auto bytes_of = [](const fs::path& path) {
    std::ostringstream out;
    out << std::ifstream(path, std::ios::binary).rdbuf();
    return out.str();
  };
  write(path_);
  write(folder_ / "again.h5");
  EXPECT_EQ(bytes_of(path_), bytes_of(folder_ / "again.h5"));

  CheckpointWriter writer(path_);
  writer.write_meta({});
  writer.write_parameter({.name = "none",
                          .shape = {8},
                          .encoding = "int32",
                          .nnz = 0,
                          .values = Tensor(nullptr, DType::fp32, Shape{0}),
                          .index = {}});
  writer.commit();
  const CheckpointReader reader(path_);
  EXPECT_EQ(reader.info("none").nnz, 0);
  std::vector<float> nothing;
  reader.values("none", tensor(nothing));
  EXPECT_TRUE(reader.verify_all().at(0).ok);
}

TEST_F(CheckpointTest, OnlyACommitReplacesTheFile) {
  write(path_);
  {
    CheckpointWriter writer(path_);
    writer.write_meta({.step = 8});
    EXPECT_EQ(files(), 2);
    CheckpointWriter moved = std::move(writer);
  }
  EXPECT_EQ(files(), 1) << "the temporary file goes with its writer";
  EXPECT_EQ(CheckpointReader(path_).meta().step, 7);
  {
    CheckpointWriter writer(path_);
    writer.write_meta({.step = 8});
    EXPECT_EQ(CheckpointReader(path_).meta().step, 7);
    writer.commit();
    EXPECT_THROW(writer.write_meta({}), Bug);
  }
  EXPECT_EQ(CheckpointReader(path_).meta().step, 8);
  expect_parts(failure_of([] { CheckpointWriter("/dev/null/x.h5"); }), {"/dev/null"});
}

TEST_F(CheckpointTest, NamesAndFoldersOfCheckpoints) {
  EXPECT_EQ(checkpoint_name(100), "step-000100.h5");
  EXPECT_EQ(checkpoint_step("x/step-1234567.h5"), 1234567);
  for (const char* other : {"step-100.h5", "step-000100.h5.tmp-1", "step-.h5", "stop-000100.h5"}) {
    EXPECT_FALSE(checkpoint_step(other)) << other;
  }
  EXPECT_TRUE(checkpoints_in(folder_ / "none").empty());
  EXPECT_FALSE(newest_intact_checkpoint(folder_).file);
  const auto touch = [&](const std::string& name) { std::ofstream(folder_ / name) << "x"; };
  for (const int64_t step : {900, 1'000'000, 20, 1000}) {
    touch(checkpoint_name(step));
  }
  touch(fmt::format("step-000020.h5.tmp-999999999-{}", host_name()));
  touch("step-000020.h5.tmp-999999999-another");
  touch(temporary_name("step-000020.h5").string());
  touch("notes.txt");
  EXPECT_EQ(checkpoints_in(folder_).back(), folder_ / "step-1000000.h5");
  EXPECT_EQ(newest_intact_checkpoint(folder_).skipped.size(), 4U);
  remove_old_checkpoints(folder_, 2);
  EXPECT_EQ(checkpoints_in(folder_),
            (std::vector<fs::path>{folder_ / "step-001000.h5", folder_ / "step-1000000.h5"}));
  EXPECT_EQ(files(), 5) << "notes.txt, and files of a living process and of another machine, stay";
}

TEST_F(CheckpointTest, AProcessThatEndedUnawaitedOwnsNoFiles) {
  const pid_t ended = fork();
  if (ended == 0) {
    _exit(0);
  }
  siginfo_t status{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(ended), &status, WEXITED | WNOWAIT), 0);
  const fs::path file = folder_ / fmt::format("x.h5.tmp-{}-{}", ended, host_name());
  EXPECT_TRUE(is_abandoned(file));
  waitpid(ended, nullptr, 0);
  EXPECT_TRUE(is_abandoned(file));
  EXPECT_FALSE(is_abandoned(temporary_name(folder_ / "x.h5")));
}

TEST_F(CheckpointTest, AFolderThatCannotBeReadIsNotEmpty) {
  std::ofstream(folder_ / "file") << "x";
  EXPECT_THROW(checkpoints_in(folder_ / "file"), Failure);
  EXPECT_FALSE(path_exists(folder_ / "none"));
  EXPECT_FALSE(path_exists(folder_ / "file" / "below"));
  EXPECT_THROW(path_exists(folder_ / std::string(5000, 'a')), Failure);
}

TEST_F(CheckpointTest, OptimizerStateHasOneElementForEachKeptOne) {
  std::vector<float> values(12, 0.5F);
  std::vector<float> moment(6, 1);
  {
    CheckpointWriter writer(path_);
    writer.write_meta({.step = 1, .config = "[train]\n", .extra = {}});
    writer.write_parameter(
        {.name = "w", .shape = {4, 3}, .nnz = 12, .values = tensor(values), .index = {}});
    writer.write_optimizer("w", "moment1", tensor(moment));
    writer.commit();
  }
  const CheckpointReader reader(path_);
  expect_parts(failure_of([&] { reader.optimizer("w", "moment1", tensor(values)); }),
               {"/optim/w/moment1", "has 6 elements, expected 12"});
  expect_parts(failure_of([&] { reader.optimizer("w", "moment2", tensor(values)); }),
               {"/optim/w/moment2", "missing"});
}

/// The file stores IEEE halves; every type can load them, and fp16 can load every type.
TEST_F(CheckpointTest, HoldsHalfPrecision) {
  std::vector<fp16> halves{to_fp16(1.5F), to_fp16(-0x1p-24F), to_fp16(65504.0F), to_fp16(0.1F)};
  const auto in_fp16 = [](std::vector<fp16>& data) {
    return Tensor(data.data(), DType::fp16, Shape{static_cast<int64_t>(data.size())});
  };
  {
    CheckpointWriter writer(path_);
    writer.write_meta({.step = 1, .config = "", .extra = {}});
    writer.write_parameter(
        {.name = "w", .shape = {2, 2}, .nnz = 4, .values = in_fp16(halves), .index = {}});
    writer.write_parameter(
        {.name = "wide", .shape = {3}, .nnz = 3, .values = tensor(list_), .index = {}});
    writer.commit();
  }
  const hdf5::Reader file(path_);
  EXPECT_EQ(file.describe("/params/w/values").type, hdf5::Type::fp16);
  const CheckpointReader reader(path_);
  EXPECT_EQ(reader.info("w").dtype, DType::fp16);
  EXPECT_EQ(reader.info("w").value_bytes, 8U);
  std::vector<fp16> same(4);
  reader.values("w", in_fp16(same));
  EXPECT_EQ(same, halves);
  std::vector<float> widened(4);
  reader.values("w", tensor(widened));
  std::vector<bf16> other(4);
  reader.values("w", tensor(other));
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(widened[i], to_float(halves[i]));
    EXPECT_EQ(other[i], to_bf16(to_float(halves[i])));
  }
  std::vector<fp16> narrowed(3);
  reader.values("wide", in_fp16(narrowed));
  EXPECT_EQ(narrowed[1], to_fp16(-0.5F));
  for (const auto& row : reader.verify_all()) {
    EXPECT_TRUE(row.ok) << row.dataset;
  }
}

/// Its attributes are arrays of one number, and texts of fixed length.
TEST_F(CheckpointTest, VersionOneStaysReadable) {
  const CheckpointReader reader(fs::path(ESPALIER_SOURCE_DIR) / "tests/data/checkpoint_v1.h5");
  EXPECT_EQ(reader.meta().step, 7);
  EXPECT_EQ(reader.meta().config, "[train]\nsteps = 9\n");
  EXPECT_EQ(reader.meta().extra,
            (std::map<std::string, std::string>{{"empty", ""}, {"vocabulary", "0a20"}}));
  EXPECT_EQ(reader.info("bits").nnz, 4);
  EXPECT_EQ(reader.info("bits").shape, (Shape{3, 5}));
  EXPECT_EQ(reader.index("bits"), bits_index_);
  std::vector<bf16> bits(4);
  reader.values("bits", tensor(bits));
  EXPECT_EQ(bits, bits_);
  std::vector<float> moment(4);
  reader.optimizer("bits", "master", tensor(moment));
  EXPECT_EQ(moment, moment_);
  for (const auto& row : reader.verify_all()) {
    EXPECT_TRUE(row.ok) << row.dataset;
  }
}

}  // namespace
}  // namespace espalier::io::checkpoint_test
