// Checkpoints: round trips, atomic replacement, damage that is found and named, and other programs' files.
#include "io/checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "io/hdf5.h"
#include "src/core/error.h"

namespace espalier::io {
namespace {

namespace fs = std::filesystem;

template <class Action>
std::string failure_of(Action action) {
  try {
    action();
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "";
}

void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" in: " << message;
  }
}

Tensor tensor(std::vector<float>& data) {
  return Tensor(data.data(), DType::fp32, Shape{static_cast<int64_t>(data.size())});
}
Tensor tensor(std::vector<bf16>& data) {
  return Tensor(data.data(), DType::bf16, Shape{static_cast<int64_t>(data.size())});
}

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("espalier-checkpoint-{}", ::getpid());
    fs::create_directories(folder_);
    path_ = folder_ / "step-000007.h5";
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// "bits" [3, 5] bitmap bf16, "list" [10] int32 fp32, "norm.weight" [4] full, with optimizer state.
  void write(const fs::path& path) {
    CheckpointWriter writer(path);
    writer.meta({.step = 7,
                 .data_cursor = 84,
                 .rng = 3,
                 .config = "[train]\nsteps = 9\n",
                 .extra = {{"vocabulary", "0a20"}, {"empty", ""}}});
    writer.parameter({.name = "bits",
                      .shape = {3, 5},
                      .encoding = "bitmap",
                      .nnz = 4,
                      .values = tensor(bits_),
                      .index = bits_index_});
    writer.optimizer("bits", "master", tensor(moment_));
    writer.optimizer("bits", "moment1", tensor(moment_));
    const auto* index = reinterpret_cast<const uint8_t*>(list_index_.data());
    writer.parameter({.name = "list",
                      .shape = {10},
                      .encoding = "int32",
                      .nnz = 3,
                      .values = tensor(list_),
                      .index = {index, 12}});
    writer.parameter(
        {.name = "norm.weight", .shape = {4}, .nnz = 4, .values = tensor(moment_), .index = {}});
    writer.commit();
  }
  std::string failure_of_read() const {
    return failure_of([&] {
      const CheckpointReader reader(path_);
      for (const std::string& name : reader.names()) {
        std::vector<float> out(static_cast<size_t>(reader.info(name).nnz));
        reader.values(name, tensor(out));
        reader.index(name);
      }
    });
  }
  int files() const { return static_cast<int>(std::distance(fs::directory_iterator(folder_), {})); }

  fs::path folder_;
  fs::path path_;
  std::vector<bf16> bits_{to_bf16(1.5F), to_bf16(-2.0F), to_bf16(1e30F), to_bf16(1e-30F)};
  std::vector<uint8_t> bits_index_{0b00010001, 0b01000001, 0, 0, 0, 0, 0, 0};  // 0, 4, 8, 14
  std::vector<float> list_{0.25F, -0.5F, 3.0F};
  std::vector<int32_t> list_index_{1, 2, 9};
  std::vector<float> moment_{1, 2, 3, 4};
};

TEST_F(CheckpointTest, GivesBackWhatWasWritten) {
  write(path_);
  const CheckpointReader reader(path_);
  const CheckpointMeta meta = reader.meta();
  EXPECT_EQ(meta.step, 7);
  EXPECT_EQ(meta.data_cursor, 84);
  EXPECT_EQ(meta.rng, 3);
  EXPECT_EQ(meta.config, "[train]\nsteps = 9\n");
  EXPECT_EQ(meta.extra.at("vocabulary"), "0a20");
  EXPECT_EQ(meta.extra.at("empty"), "");
  EXPECT_EQ(reader.names(), (std::vector<std::string>{"bits", "list", "norm.weight"}));

  const ParameterInfo info = reader.info("bits");
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
  writer.meta({});
  writer.parameter({.name = "none",
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
    writer.meta({.step = 8});
    EXPECT_EQ(files(), 2);
    CheckpointWriter moved = std::move(writer);
  }
  EXPECT_EQ(files(), 1) << "the temporary file goes with its writer";
  EXPECT_EQ(CheckpointReader(path_).meta().step, 7);
  {
    CheckpointWriter writer(path_);
    writer.meta({.step = 8});
    EXPECT_EQ(CheckpointReader(path_).meta().step, 7);
    writer.commit();
    EXPECT_THROW(writer.meta({}), Bug);
  }
  EXPECT_EQ(CheckpointReader(path_).meta().step, 8);
  expect_parts(failure_of([] { CheckpointWriter("/dev/null/x.h5"); }), {"/dev/null"});
}

TEST_F(CheckpointTest, WhatIsNoCheckpointIsNamedAsWhatItIs) {
  expect_parts(failure_of_read(), {path_.string(), "No such file"});
  std::ofstream(path_) << "not HDF5 at all";
  expect_parts(failure_of_read(), {path_.string(), "HDF5", "signature"});
  std::ofstream(path_, std::ios::trunc).close();
  EXPECT_NE(failure_of_read(), "");
  fs::remove(path_);
  {
    auto file = hdf5::File::create(path_, "test");
    file.make_group("/weights");
    file.finish();
  }
  expect_parts(failure_of_read(), {"not an Espalier checkpoint", "espalier import"});
  fs::remove(path_);
  fs::create_directory(path_);
  expect_parts(failure_of_read(), {"not an ordinary file"});
}

TEST_F(CheckpointTest, TruncationIsFound) {
  write(path_);
  const auto whole = fs::file_size(path_);
  for (const auto size : {whole - 1, whole / 2, uintmax_t{100}, uintmax_t{10}}) {
    fs::resize_file(path_, size);
    expect_parts(failure_of_read(), {path_.string()});
  }
}

/// A checkpoint in which one thing is not as it should be.
struct Flaw {
  std::string name;
  int64_t version = 1;
  int64_t nnz = 3;
  std::string encoding = "int32";
  std::string dtype = "fp32";
  std::vector<int64_t> shape{10};
  bool index = true;
  bool checksum = true;
  std::string message;
};

TEST_F(CheckpointTest, WhatDoesNotFitIsNamed) {
  const std::vector<Flaw> flaws{
      {.name = "none", .message = ""},
      {.name = "version", .version = 2, .message = "version 2"},
      {.name = "too many", .nnz = 4, .message = "3 elements but nnz = 4"},
      {.name = "negative", .nnz = -1, .message = "nnz = -1"},
      {.name = "above shape", .shape = {2}, .message = "does not fit shape [2]"},
      {.name = "rank", .shape = {1, 1, 1, 1, 10}, .message = "impossible"},
      {.name = "overflow", .shape = {1LL << 40, 1LL << 40}, .message = "impossible"},
      {.name = "encoding", .encoding = "zip", .message = "\"zip\""},
      {.name = "full", .encoding = "full", .message = "does not fit"},
      {.name = "index type", .encoding = "bitmap", .message = "element type"},
      {.name = "dtype", .dtype = "bf16", .message = "not stored as its dtype"},
      {.name = "no index", .index = false, .message = "/params/w/index is missing"},
      {.name = "no checksum", .checksum = false, .message = "attribute checksum"},
  };
  for (const Flaw& flaw : flaws) {
    fs::remove(path_);
    auto file = hdf5::File::create(path_, "test");
    const std::vector<int64_t> three{3};
    for (const char* group : {"/meta", "/params", "/params/w"}) {
      file.make_group(group);
    }
    file.set_text("/meta", "format", "espalier-checkpoint");
    file.set_integers("/meta", "version", std::span(&flaw.version, 1));
    file.set_integers("/params/w", "shape", flaw.shape);
    file.set_integers("/params/w", "nnz", std::span(&flaw.nnz, 1));
    file.set_text("/params/w", "encoding", flaw.encoding);
    file.set_text("/params/w", "dtype", flaw.dtype);
    file.write("/params/w/values", hdf5::Type::fp32, three, list_.data());
    if (flaw.index) {
      file.write("/params/w/index", hdf5::Type::int32, three, list_index_.data());
    }
    if (flaw.checksum) {  // XXH64 of the bytes, computed by another program
      file.set_text("/params/w/values", "checksum", "fbcfbb3921a0f2ff");
    }
    if (flaw.index) {
      file.set_text("/params/w/index", "checksum", "83cf644916ac65e0");
    }
    file.finish();
    const std::string message = failure_of_read();
    EXPECT_EQ(message.empty(), flaw.message.empty()) << flaw.name << ": " << message;
    expect_parts(message, {flaw.message});
  }
}

TEST_F(CheckpointTest, ADamagedDatasetIsNamedAndListed) {
  write(path_);
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const size_t at = bytes.find(std::string(reinterpret_cast<const char*>(list_.data()), 12));
  ASSERT_NE(at, std::string::npos) << "raw values stand in the file as they are in memory";
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(bytes[at] ^ 4));
  file.close();
  expect_parts(failure_of_read(), {path_.string(), "/params/list/values", "damaged", "checksum",
                                   "use another checkpoint"});
  const auto verified = CheckpointReader(path_).verify_all();
  EXPECT_EQ(verified.size(), 7U);
  for (const auto& row : verified) {
    EXPECT_EQ(row.ok, row.dataset != "/params/list/values") << row.dataset;
    EXPECT_EQ(row.error.empty(), row.ok);
    EXPECT_GT(row.bytes, 0U);
  }
}

TEST_F(CheckpointTest, NamesAndFoldersOfCheckpoints) {
  EXPECT_EQ(checkpoint_name(100), "step-000100.h5");
  EXPECT_EQ(checkpoint_step("x/step-1234567.h5"), 1234567);
  for (const char* other : {"step-100.h5", "step-000100.h5.tmp-1", "step-.h5", "stop-000100.h5"}) {
    EXPECT_FALSE(checkpoint_step(other)) << other;
  }
  EXPECT_FALSE(latest_checkpoint(folder_ / "none"));
  EXPECT_FALSE(latest_checkpoint(folder_));
  const auto touch = [&](const std::string& name) { std::ofstream(folder_ / name) << "x"; };
  for (const int64_t step : {900, 1'000'000, 20, 1000}) {
    touch(checkpoint_name(step));
  }
  touch("step-000020.h5.tmp-999999999");
  touch(fmt::format("step-000020.h5.tmp-{}", ::getpid()));
  touch("notes.txt");
  EXPECT_EQ(latest_checkpoint(folder_), folder_ / "step-1000000.h5");
  prune_checkpoints(folder_, 2);
  EXPECT_EQ(checkpoints_in(folder_),
            (std::vector<fs::path>{folder_ / "step-001000.h5", folder_ / "step-1000000.h5"}));
  EXPECT_EQ(files(), 4) << "notes.txt and the file of a living process stay";
}

TEST_F(CheckpointTest, VersionOneStaysReadable) {
  const CheckpointReader reader(fs::path(ESPALIER_SOURCE_DIR) / "tests/data/checkpoint_v1.h5");
  EXPECT_EQ(reader.meta().step, 7);
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

/// The Python code blocks of a document.
std::vector<std::string> python_blocks(const fs::path& document) {
  std::ifstream file(document);
  std::vector<std::string> out;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line == "```python") {
      out.emplace_back();
      inside = true;
    } else if (line == "```") {
      inside = false;
    } else if (inside) {
      out.back() += line + "\n";
    }
  }
  return out;
}

/// A Python that has h5py; empty when there is none.
std::string python() {
  const char* chosen = std::getenv("ESPALIER_PYTHON");
  for (const std::string& program :
       {std::string(chosen != nullptr ? chosen : "python3"), std::string("/usr/bin/python3")}) {
    if (std::system((program + " -c 'import h5py, numpy' >/dev/null 2>&1").c_str()) == 0) {
      return program;
    }
  }
  return "";
}

TEST_F(CheckpointTest, TheDocumentedTwoLinesOfH5pyGiveTheDenseArray) {
  const std::vector<std::string> blocks =
      python_blocks(fs::path(ESPALIER_SOURCE_DIR) / "docs/formats.md");
  ASSERT_EQ(blocks.size(), 2U);
  for (const std::string& block : blocks) {
    EXPECT_EQ(std::ranges::count(block, '\n'), 2) << block;
  }
  const std::string interpreter = python();
  if (interpreter.empty()) {
    GTEST_SKIP()
        << "no Python with h5py here: apt-get install python3-h5py, or set ESPALIER_PYTHON";
  }
  write(path_);
  const auto run = [&](std::string code, const std::string& name, const std::string& expected) {
    const auto replace = [&](const std::string& what, const std::string& by) {
      const size_t at = code.find(what);
      ASSERT_NE(at, std::string::npos) << what;
      code.replace(at, what.size(), by);
    };
    replace("step-000100.h5", path_.string());
    replace("NAME", name);
    const fs::path script = folder_ / "snippet.py";
    std::ofstream(script) << "import h5py, numpy as np\n" << code << expected;
    EXPECT_EQ(std::system((interpreter + " " + script.string()).c_str()), 0) << code;
  };
  run(blocks[0], "bits",
      "want = np.zeros((3, 5), 'f4')\n"
      "want.flat[[0, 4, 8, 14]] = np.array([0x3fc00000, 0xc0000000, 0x714a0000, 0x0da20000],\n"
      "                                    'u4').view('f4')\n"
      "assert p['values'].dtype == np.float32\n"
      "assert dense.dtype == np.float32 and (dense == want).all(), (dense, want)\n");
  run(blocks[1], "list",
      "assert dense.tolist() == [0, 0.25, -0.5, 0, 0, 0, 0, 0, 0, 3], dense\n"
      "m = h5py.File(p.file.filename)['meta'].attrs\n"
      "assert m['step'] == 7 and m['config'].decode().startswith('[train]'), dict(m)\n"
      "assert list(p.file['params']) == ['bits', 'list', 'norm.weight']\n");
}

}  // namespace
}  // namespace espalier::io
