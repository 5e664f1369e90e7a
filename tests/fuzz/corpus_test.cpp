// The targets over their corpora in the default tests: every file, and every beginning of it, is
// read or refused in time and within bounded memory. scripts/fuzz.sh searches for more inputs.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <map>

#include "src/core/error.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/memory_limit.h"

namespace espalier::fuzz::corpus_test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// Memory beyond what targets keep between inputs; inputs have a few kB.
constexpr size_t kMaxMemory = size_t{64} << 20;
/// Inputs of more bytes are cut at so many lengths.
constexpr size_t kMaxCuts = 256;

fs::path corpus_of(const Target& target) {
  return fs::path(ESPALIER_SOURCE_DIR) / "tests/fuzz/corpus" / target.name;
}

std::map<std::string, std::vector<uint8_t>> inputs_of(const Target& target) {
  std::map<std::string, std::vector<uint8_t>> inputs;
  for (const auto& entry : fs::directory_iterator(corpus_of(target))) {
    std::ifstream file(entry.path(), std::ios::binary);
    inputs[entry.path().filename().string()] = {std::istreambuf_iterator<char>(file), {}};
  }
  return inputs;
}

void expect_harmless(const Target& target, Input input, const std::string& name) {
  // On the heap, of the exact size: sanitizers then see reads beyond the end.
  const std::vector<uint8_t> exact(input.begin(), input.end());
  const auto start = Clock::now();
  try {
    run(target, exact);
  } catch (const std::exception& error) {
    ADD_FAILURE() << target.name << ", " << name << ", " << input.size()
                  << " bytes: " << error.what();
  }
  // Ten times the limit of a quiet machine: tests share the cores.
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(10)) << target.name << ", " << name;
}

TEST(FuzzCorpus, EachTargetHasOne) {
  EXPECT_GE(targets().size(), 9U);
  for (const Target& target : targets()) {
    EXPECT_FALSE(inputs_of(target).empty()) << target.name;
  }
}

TEST(FuzzCorpus, EachInputIsReadOrRefused) {
  for (const Target& target : targets()) {
    const auto inputs = inputs_of(target);
    expect_harmless(target, {}, "nothing");  // what targets keep between inputs exists now
    const MemoryLimit limit(kMaxMemory);
    for (const auto& [name, input] : inputs) {
      expect_harmless(target, input, name);
    }
  }
}

TEST(FuzzCorpus, EachBeginningIsReadOrRefused) {
  for (const Target& target : targets()) {
    for (const auto& [name, input] : inputs_of(target)) {
      const size_t step = std::max<size_t>(1, input.size() / kMaxCuts);
      for (size_t length = 0; length < input.size(); length += step) {
        expect_harmless(target, Input(input).first(length), name);
      }
    }
  }
}

TEST(FuzzCorpus, AnInputThatIsRefusedIsNoFinding) {
  const Target refuses{"refuses", [](Input) { fail("the file is damaged; use another file"); }};
  EXPECT_NO_THROW(run(refuses, {}));
  const Target broken{"broken", [](Input) { require(false, "a rule"); }};
  EXPECT_THROW(run(broken, {}), Bug);
}

}  // namespace
}  // namespace espalier::fuzz::corpus_test
