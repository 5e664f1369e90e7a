#pragma once
// A small checkpoint in its own folder, for tests that write, damage and read checkpoints.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "src/core/error.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"

namespace espalier::io {

inline void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_THAT(message, HasSubstr(part)) << "\"" << part << "\" in: " << message;
  }
}

inline Tensor tensor(std::vector<float>& data) {
  return Tensor(data.data(), DType::fp32, Shape{static_cast<int64_t>(data.size())});
}
inline Tensor tensor(std::vector<bf16>& data) {
  return Tensor(data.data(), DType::bf16, Shape{static_cast<int64_t>(data.size())});
}

class CheckpointTest : public ::testing::Test {
 protected:
  /// "bits" [3, 5] bitmap bf16, "list" [10] int32 fp32, "norm.weight" [4] full, with optimizer
  /// state.
  void write(const std::filesystem::path& path) {
    CheckpointWriter writer(path);
    writer.write_meta({.step = 7,
                       .config = "[train]\nsteps = 9\n",
                       .extra = {{"vocabulary", "0a20"}, {"empty", ""}}});
    writer.write_parameter({.name = "bits",
                            .shape = {3, 5},
                            .encoding = "bitmap",
                            .nnz = 4,
                            .values = tensor(bits_),
                            .index = bits_index_});
    writer.write_optimizer("bits", "master", tensor(moment_));
    writer.write_optimizer("bits", "moment1", tensor(moment_));
    const auto* index = reinterpret_cast<const uint8_t*>(list_index_.data());
    writer.write_parameter({.name = "list",
                            .shape = {10},
                            .encoding = "int32",
                            .nnz = 3,
                            .values = tensor(list_),
                            .index = {index, 12}});
    writer.write_parameter(
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
  int files() const {
    return static_cast<int>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  const testing::TempDir folder_;
  const std::filesystem::path path_ = folder_ / "step-000007.h5";
  std::vector<bf16> bits_{to_bf16(1.5F), to_bf16(-2.0F), to_bf16(1e30F), to_bf16(1e-30F)};
  std::vector<uint8_t> bits_index_{0b00010001, 0b01000001, 0, 0, 0, 0, 0, 0};  // 0, 4, 8, 14
  std::vector<float> list_{0.25F, -0.5F, 3.0F};
  std::vector<int32_t> list_index_{1, 2, 9};
  std::vector<float> moment_{1, 2, 3, 4};
};

}  // namespace espalier::io
