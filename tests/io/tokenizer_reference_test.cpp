// Tokenizers beside those of the libraries `tokenizers` and `sentencepiece`:
// tests/scripts/tokenizers_test.py makes the cases and calls this test.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "io/tokenizer/tokenizer.h"
#include "tests/io/tokenizer_streams.h"

namespace espalier::io::tokenizer_reference_test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

void compare(const Tokenizer& tokenizer, const Json& line, const std::string& name) {
  const auto text = line["text"].get<std::string>();
  const auto ids = line["ids"].get<Ids>();
  const auto plain = line["plain"].get<Ids>();
  ASSERT_EQ(tokenizer.encode(text), ids) << name << ": " << line["text"];
  ASSERT_EQ(tokenizer.encode(text, false), plain) << name << ": " << line["text"];
  ASSERT_EQ(tokenizer.decode(ids), line["decoded"].get<std::string>()) << name << ": " << line;
  ASSERT_EQ(tokenizer.decode(ids, false), line["skipped"].get<std::string>())
      << name << ": " << line;
  ASSERT_EQ(streamed(tokenizer, text, 16, 7), plain) << name << ", in parts: " << line["text"];
}

/// All texts in a row, in parts.
void compare_stream(const Tokenizer& tokenizer, const std::string& text, const std::string& name) {
  const Ids whole = tokenizer.encode(text, false);
  for (const size_t window : {200U, 5000U, 1U << 17}) {
    EXPECT_TRUE(streamed(tokenizer, text, window, 4099) == whole) << name << ", window " << window;
  }
}

TEST(TokenizerReference, IdsAndTextsAreThoseOfTokenizers) {
  const char* folder = std::getenv("ESPALIER_TOKENIZER_CASES");
  if (folder == nullptr) {
    GTEST_SKIP() << "tests/scripts/tokenizers_test.py makes the cases";
  }
  int64_t cases = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".json" && entry.path().extension() != ".model") {
      continue;
    }
    const std::string name = entry.path().stem();
    const Tokenizer tokenizer = Tokenizer::from_file(entry.path());
    std::ifstream lines(fs::path(folder) / (name + ".jsonl"));
    std::string all;
    for (std::string text; std::getline(lines, text); ++cases) {
      const Json line = Json::parse(text);
      compare(tokenizer, line, name);
      if (HasFatalFailure()) {
        break;
      }
      all += line["text"].get<std::string>();
    }
    compare_stream(tokenizer, all, name);
  }
  std::printf("%lld texts\n", static_cast<long long>(cases));
  EXPECT_GT(cases, 0);
}

}  // namespace
}  // namespace espalier::io::tokenizer_reference_test
