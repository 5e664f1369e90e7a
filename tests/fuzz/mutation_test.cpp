// Random damage to the corpora, the same in every run: each target reads or refuses it.
// ESPALIER_FUZZ = inputs of each target (default 300). And that damage of a checkpoint gets past
// its checksums (checksums.cpp), to the readers that are to be tested.
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "io/checkpoint/checkpoint.h"
#include "src/core/error.h"
#include "src/core/rng.h"
#include "src/train/masks/mask_files.h"
#include "tests/fuzz/fuzz.h"

namespace espalier::fuzz::mutation_test {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<uint8_t>;

class Random {
 public:
  explicit Random(uint64_t round) : round_(round) {}
  uint64_t below(uint64_t bound) {
    const Philox words = philox(3, round_, next_++);
    return espalier::below(uint64_t{words[0]} << 32 | words[1], bound);
  }

 private:
  uint64_t round_;
  uint64_t next_ = 0;
};

std::vector<Bytes> corpus_of(std::string_view target) {
  std::vector<Bytes> inputs;
  const fs::path folder = fs::path(ESPALIER_SOURCE_DIR) / "tests/fuzz/corpus" / target;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  std::ranges::sort(inputs);
  return inputs;
}

/// One to four bytes changed, or a part repeated, or removed.
Bytes damaged(Bytes bytes, Random& random) {
  if (bytes.empty()) {
    return {static_cast<uint8_t>(random.below(256))};
  }
  const auto at = [&] { return bytes.begin() + static_cast<int64_t>(random.below(bytes.size())); };
  switch (random.below(8)) {
    case 0:
      bytes.erase(at(), bytes.end());
      break;
    case 1: {
      const Bytes part(at(), bytes.end());
      bytes.insert(at(), part.begin(), part.begin() + std::min<int64_t>(std::ssize(part), 16));
      break;
    }
    default:
      for (uint64_t changes = 1 + random.below(4); changes > 0; --changes) {
        constexpr std::array<uint8_t, 6> kEdges{0x00, 0x01, 0x7f, 0x80, 0xfe, 0xff};
        *at() = static_cast<uint8_t>(random.below(2) == 0 ? kEdges[random.below(kEdges.size())]
                                                          : random.below(256));
      }
  }
  return bytes;
}

TEST(FuzzMutation, EachTargetReadsOrRefusesDamage) {
  const char* wanted = std::getenv("ESPALIER_FUZZ");
  const uint64_t rounds = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 300;
  for (const Target& target : targets()) {
    const std::vector<Bytes> inputs = corpus_of(target.name);
    const uint64_t times = target.name == "index" ? 20 : 1;  // a few bytes each
    for (uint64_t round = 0; round < times * rounds; ++round) {
      Random random(round);
      const Bytes input = damaged(inputs[random.below(inputs.size())], random);
      EXPECT_NO_THROW(run(target, input)) << target.name << ", round " << round;
    }
  }
}

/// The first message of a reader that refuses the file, without its numbers; "read" if none does.
std::string verdict(const fs::path& path) {
  std::string text = "read";
  try {
    const io::CheckpointReader reader(path);
    reader.meta();
    for (const std::string& name : reader.names()) {
      const io::StoredParameter info = reader.info(name);
      train::read_mask(reader, name);
      std::vector<float> values(static_cast<size_t>(info.nnz));
      reader.values(name, Tensor(values.data(), DType::fp32, Shape{info.nnz}));
    }
  } catch (const Failure& failure) {
    text = failure.what();
  }
  std::erase_if(text, [](char c) { return c >= '0' && c <= '9'; });
  return text;
}

TEST(FuzzMutation, DamageOfACheckpointGetsPastItsChecksums) {
  MemoryFile file;
  std::set<std::string> verdicts;
  uint64_t by_checksum = 0;  // the damaged byte is part of one
  uint64_t read = 0;
  constexpr uint64_t kRounds = 2000;
  const std::vector<Bytes> inputs = corpus_of("checkpoint");
  for (uint64_t round = 0; round < kRounds; ++round) {
    Random random(round);
    file.fill(damaged(inputs[random.below(inputs.size())], random));
    const std::string found = verdict(file.path());
    by_checksum += found.find("wrong checksum") != std::string::npos ? 1 : 0;
    read += found == "read" ? 1 : 0;
    verdicts.insert(found);
  }
  EXPECT_LT(by_checksum, kRounds / 4);
  EXPECT_GT(read, kRounds / 20) << "damage of names, numbers and values that nothing contradicts";
  EXPECT_GT(verdicts.size(), 60U) << "kinds of refusal";
}

}  // namespace
}  // namespace espalier::fuzz::mutation_test
