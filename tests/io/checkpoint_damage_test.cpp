// Damage, truncation and files of another kind: each is found and named.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <fstream>

#include "io/hdf5/hdf5.h"
#include "tests/io/checkpoint_example.h"

/// HDF5's library leaks some memory; read by the address sanitizer only.
// NOLINTNEXTLINE(bugprone-reserved-identifier): the sanitizer's own name
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }

namespace espalier::io::checkpoint_damage_test {
namespace {

namespace fs = std::filesystem;

class CheckpointDamage : public CheckpointTest {};

TEST_F(CheckpointDamage, WhatIsNoCheckpointIsNamedAsWhatItIs) {
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

TEST_F(CheckpointDamage, TruncationIsFound) {
  write(path_);
  const auto whole = fs::file_size(path_);
  for (const auto size : {whole - 1, whole / 2, uintmax_t{100}, uintmax_t{10}}) {
    fs::resize_file(path_, size);
    expect_parts(failure_of_read(), {path_.string()});
  }
}

/// All that a reader gets.
std::string contents(const fs::path& path) {
  const CheckpointReader reader(path);
  const CheckpointMeta meta = reader.meta();
  std::string all = fmt::format("{} {} {}", meta.step, meta.config, fmt::join(meta.extra, " "));
  for (const std::string& name : reader.names()) {
    const StoredParameter info = reader.info(name);
    std::vector<float> values(static_cast<size_t>(info.nnz));
    reader.values(name, tensor(values));
    all += fmt::format("{} {} {} {} {} {}", name, info.shape.text(), info.encoding,
                       name_of(info.dtype), fmt::join(values, " "),
                       fmt::join(reader.index(name), " "));
  }
  return all;
}

TEST_F(CheckpointDamage, AFlippedBitIsFoundOrDoesNotMatter) {
  write(path_);
  const std::string expected = contents(path_);
  std::ifstream file(path_, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(file), {}};
  size_t found = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << damaged;
    try {
      ASSERT_EQ(contents(path_), expected) << "byte " << at;
    } catch (const Failure& failure) {
      expect_parts(failure.what(), {path_.string()});
      ++found;
    }
  }
  EXPECT_GT(found, whole.size() / 4);
}

/// A checkpoint with one defect.
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

TEST_F(CheckpointDamage, WhatDoesNotFitIsNamed) {
  const std::vector<Flaw> flaws{
      {.name = "none", .message = ""},
      {.name = "version", .version = 3, .message = "version 3"},
      {.name = "no text checksum", .version = 2, .message = "attribute checksum"},
      {.name = "too many", .nnz = 4, .message = "3 elements but nnz = 4"},
      {.name = "negative", .nnz = -1, .message = "nnz = -1"},
      {.name = "above shape", .shape = {2}, .message = "does not fit shape [2]"},
      {.name = "rank", .shape = {1, 1, 1, 1, 10}, .message = "impossible"},
      {.name = "overflow", .shape = {1LL << 40, 1LL << 40}, .message = "impossible"},
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

TEST_F(CheckpointDamage, ADamagedDatasetIsNamedAndListed) {
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

TEST_F(CheckpointDamage, PartsHaveEachDatasetOnce) {
  write(path_);
  const CheckpointReader reader(path_);
  const auto names_of = [](const auto& rows) {
    std::vector<std::string> names;
    for (const auto& row : rows) {
      EXPECT_TRUE(row.ok) << row.dataset;
      names.push_back(row.dataset);
    }
    return names;
  };
  const std::vector<std::string> all = names_of(reader.verify_all());
  for (const int count : {1, 2, 3, 50}) {
    std::vector<std::string> of_parts;
    for (int i = 0; i < count; ++i) {
      for (const std::string& name : names_of(reader.verify_all({.index = i, .count = count}))) {
        of_parts.push_back(name);
      }
    }
    EXPECT_EQ(of_parts, all) << count << " parts";
  }
}

}  // namespace
}  // namespace espalier::io::checkpoint_damage_test
