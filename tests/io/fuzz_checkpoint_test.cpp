// Random damage: a checkpoint with flipped bits, overwritten bytes or a lost end gives a Failure or
// the written data, bit for bit; never other data, a crash or a hang. Most of it is found by
// checksums; tests/fuzz/mutation_test.cpp damages what lies behind them. ESPALIER_FUZZ = number of
// rounds (default 1,000).
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "io/checkpoint/checkpoint.h"
#include "src/core/error.h"
#include "src/core/rng.h"

/// HDF5's library leaks some memory; read by the address sanitizer only.
// NOLINTNEXTLINE(bugprone-reserved-identifier): the sanitizer's own name
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }

namespace espalier::io::fuzz_checkpoint_test {
namespace {

namespace fs = std::filesystem;

/// Random numbers of one round.
class Draws {
 public:
  explicit Draws(uint64_t round) : round_(round) {}
  uint64_t below(uint64_t bound) {
    const Philox words = philox(1, round_, next_++);
    return espalier::below(uint64_t{words[0]} << 32 | words[1], bound);
  }

 private:
  uint64_t round_;
  uint64_t next_ = 0;
};

void write_original(const fs::path& path) {
  CheckpointWriter writer(path);
  writer.write_meta(
      {.step = 7, .config = std::string(500, 'c'), .extra = {{"vocabulary", "0a20"}}});
  for (int i = 0; i < 12; ++i) {
    const int64_t nnz = 16 + i;
    std::vector<float> values(static_cast<size_t>(nnz), 1.0F + static_cast<float>(i));
    const Tensor tensor(values.data(), DType::fp32, Shape{nnz});
    const std::vector<uint8_t> index(static_cast<size_t>(4 * nnz), static_cast<uint8_t>(i));
    const std::string name = fmt::format("blocks.{}.weight", i);
    if (i % 3 == 0) {
      writer.write_parameter({.name = name, .shape = {nnz}, .nnz = nnz, .values = tensor});
    } else {
      writer.write_parameter({.name = name,
                              .shape = {64, 2},
                              .encoding = i % 3 == 1 ? "int32" : "bitmap",
                              .nnz = nnz,
                              .values = tensor,
                              .index = index});
    }
    writer.write_optimizer(name, "master", tensor);
    writer.write_optimizer(name, "moment1", tensor);
  }
  writer.commit();
}

/// The whole contents of a checkpoint as one text.
std::string contents(const fs::path& path) {
  const CheckpointReader reader(path);
  const CheckpointMeta meta = reader.meta();
  std::string out = fmt::format("{} {}", meta.step, meta.config);
  for (const auto& [name, text] : meta.extra) {
    out += name + text;
  }
  const auto add = [&](const std::vector<float>& values) {
    out.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  };
  for (const std::string& name : reader.names()) {
    const StoredParameter info = reader.info(name);
    out += fmt::format("{} {} {} {} {}", name, info.shape.text(), info.encoding, info.nnz,
                       name_of(info.dtype));
    std::vector<float> values(static_cast<size_t>(info.nnz));
    const Tensor tensor(values.data(), DType::fp32, Shape{info.nnz});
    reader.values(name, tensor);
    add(values);
    for (const uint8_t byte : reader.index(name)) {
      out += static_cast<char>(byte);
    }
    for (const char* kind : {"master", "moment1"}) {
      reader.optimizer(name, kind, tensor);
      add(values);
    }
  }
  return out;
}

void damage(std::string& bytes, Draws& draws) {
  const auto place = [&] { return draws.below(bytes.size()); };
  switch (draws.below(4)) {
    case 0:
      bytes.resize(place());
      break;
    case 1: {  // a lost page
      const uint64_t at = place();
      const uint64_t count = std::min<uint64_t>(512, bytes.size() - at);
      bytes.replace(at, count, count, '\0');
      break;
    }
    default:
      for (uint64_t flips = 1 + draws.below(4); flips > 0; --flips) {
        const uint64_t at = place();
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << draws.below(8)));
      }
  }
}

TEST(FuzzCheckpoint, DamageIsFoundOrDoesNotMatter) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("espalier-fuzz-{}", ::getpid());
  const fs::path path = folder / "original.h5";
  const fs::path damaged = folder / "damaged.h5";
  write_original(path);
  const std::string expected = contents(path);
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  const std::string original = text.str();

  const char* wanted = std::getenv("ESPALIER_FUZZ");
  const uint64_t rounds = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 1000;
  uint64_t found = 0;
  uint64_t harmless = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    Draws draws(round);
    std::string bytes = original;
    damage(bytes, draws);
    std::ofstream(damaged, std::ios::binary | std::ios::trunc) << bytes;
    const auto start = std::chrono::steady_clock::now();
    try {
      ASSERT_EQ(contents(damaged), expected) << "round " << round;
      ++harmless;
    } catch (const Failure& failure) {
      ++found;
      ASSERT_NE(std::string(failure.what()).find(damaged.string()), std::string::npos)
          << "round " << round << ": " << failure.what();
    }
    ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5))
        << "round " << round;
  }
  EXPECT_GT(found, rounds / 2) << harmless << " harmless";
  fs::remove_all(folder);
}

}  // namespace
}  // namespace espalier::io::fuzz_checkpoint_test
