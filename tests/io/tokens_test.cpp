// Token and image files: reading, splits, and the order in which training draws samples.
#include "io/data/tokens.h"

#include <array>
#include <cstring>
#include <map>
#include <set>

#include "io/data/images.h"
#include "io/tokenizer/tokenizer.h"
#include "src/core/error.h"
#include "tests/io/tokenizer_examples.h"
#include "tests/support/failure.h"
#include "tests/support/image_files.h"
#include "tests/support/support.h"

namespace espalier::io::tokens_test {
namespace {

namespace fs = std::filesystem;

class TokensTest : public ::testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return (folder_ / name).string();
  }
  template <class Number>
  std::string numbers(const std::string& name, const std::vector<Number>& values) const {
    return file(name, std::string(reinterpret_cast<const char*>(values.data()),
                                  values.size() * sizeof(Number)));
  }
  static std::vector<int32_t> all(const TokenDataset& data) {
    std::vector<int32_t> out(static_cast<size_t>(data.size()));
    data.read(0, out);
    return out;
  }

  const testing::TempDir folder_;
};

TEST_F(TokensTest, TheTailOfFilesThatValidatesIsNotInThemTwice) {
  DataConfig data{.train = {file("a", "01234"), file("b", "56789")}, .validation = {}};
  fs::create_symlink(data.train[0], folder_ / "link");
  data.train.push_back((folder_ / "link").string());
  const auto open = [&data] { TokenDataset::open(data, Split::train, {.context = 2}); };
  EXPECT_THAT(failure_of(open), HasSubstr("link is in data.train twice"));
  data.validation = {file("c", "01234")};
  EXPECT_EQ(failure_of(open), "") << "repeated data count twice";
  data.validation = {};
  data.validation_fraction = 0;
  EXPECT_EQ(failure_of(open), "") << "nothing validates";
}

TEST_F(TokensTest, BytesAreJoinedAndSplitWithoutOverlap) {
  const DataConfig data{.train = {file("a", "01234"), file("b", "56789")},
                        .validation = {},
                        .validation_fraction = 0.3};
  const auto train = TokenDataset::open(data, Split::train, {.context = 2});
  const auto validation = TokenDataset::open(data, Split::validation, {.context = 2});
  EXPECT_EQ(train.vocabulary(), 256);
  EXPECT_EQ(train.characters().decode(all(train)), "0123456");
  EXPECT_EQ(validation.characters().decode(all(validation)), "789");
  std::vector<int32_t> across(4);
  train.read(3, across);
  EXPECT_EQ(across, (std::vector<int32_t>{'3', '4', '5', '6'}));
  EXPECT_THROW(train.read(4, across), Bug) << "beyond the split lies the validation data";
}

TEST_F(TokensTest, CharactersAreThoseOfAllTheData) {
  const DataConfig data{
      .kind = "chars", .train = {file("a", "banana band")}, .validation = {file("b", "xylem")}};
  const auto train = TokenDataset::open(data, Split::train, {.context = 2});
  const auto validation = TokenDataset::open(data, Split::validation, {.context = 2});
  EXPECT_EQ(train.characters().bytes(), " abdelmnxy");
  EXPECT_EQ(train.vocabulary(), 10);
  EXPECT_EQ(train.characters(), validation.characters());
  EXPECT_EQ(validation.characters().decode(all(validation)), "xylem");
  EXPECT_EQ(all(train), train.characters().encode("banana band"));
}

TEST_F(TokensTest, AnImposedVocabularyRefusesUnknownCharacters) {
  const Vocabulary known("abn");
  EXPECT_EQ(Vocabulary::from_text(known.text()), known);
  EXPECT_EQ(Vocabulary::from_text(Vocabulary::all_bytes().text()), Vocabulary::all_bytes());
  EXPECT_THROW(Vocabulary::from_text("6"), Failure);
  EXPECT_THROW(Vocabulary::from_text("6z"), Failure);
  EXPECT_THROW(Vocabulary::from_text("6261"), Failure) << "not ascending";
  const DataConfig data{.kind = "chars",
                        .train = {file("a", "banana!banana")},
                        .validation = {},
                        .validation_fraction = 0.4};
  const auto train = TokenDataset::open(data, Split::train, {.characters = &known});
  const std::string message = failure_of([&] { all(train); });
  EXPECT_THAT(message, HasSubstr("0x21"));
  EXPECT_THAT(message, HasSubstr("token 6"));
  EXPECT_THAT(failure_of([&] { known.encode("bad"); }), HasSubstr("'d'"));
}

TEST_F(TokensTest, NumbersOfTwoAndFourBytes) {
  DataConfig data{.kind = "tokens",
                  .train = {numbers<uint16_t>("a.bin", {1, 50256, 3, 4, 5, 65535})},
                  .validation = {},
                  .validation_fraction = 0.34};
  EXPECT_EQ(all(TokenDataset::open(data, Split::train, {})),
            (std::vector<int32_t>{1, 50256, 3, 4}));
  EXPECT_EQ(TokenDataset::open(data, Split::train, {}).vocabulary(), 65536);
  data.train = {numbers<uint32_t>("b.bin", {1, 128'000, 3, 4'000'000'000})};
  // Type "auto" is that of the note; a note without a type counts as none.
  data.validation_fraction = 0;
  for (const auto& [note, count] :
       std::map<std::string, int64_t>{{"{}", 8},
                                      {"no JSON", 8},
                                      {R"({"token_type": "uint16"})", 8},
                                      {R"({"token_type": "uint32", "tokens": 4})", 4}}) {
    file("b.bin.json", note);
    EXPECT_EQ(TokenDataset::open(data, Split::train, {.vocabulary = 130'000}).size(), count)
        << note;
  }
  // Other types, counts and keys than the file's are errors.
  const auto opening = [&] {
    return failure_of([&] { TokenDataset::open(data, Split::train, {.vocabulary = 130'000}); });
  };
  for (const char* type : {"32", R"("int32")", R"("UINT32")", "null", R"(["uint32"])"}) {
    file("b.bin.json", fmt::format(R"({{"token_type": {}}})", type));
    EXPECT_THAT(opening(), HasSubstr("b.bin.json names token_type " + std::string(type)));
  }
  file("b.bin.json", R"({"token_type": "uint32", "tokens": 5})");
  EXPECT_THAT(opening(), HasSubstr("should hold 5 tokens by its note"));
  file("b.bin.json", R"({"token_type": "uint16"})");
  data.token_type = "uint32";
  EXPECT_THAT(opening(), HasSubstr("and data.token_type is \"uint32\""));
  file("b.bin.json", "{}");
  data.validation_fraction = 0;
  const auto wide = TokenDataset::open(data, Split::train, {.vocabulary = 130'000});
  std::vector<int32_t> out(3);
  wide.read(0, out);
  EXPECT_EQ(out, (std::vector<int32_t>{1, 128'000, 3}));
  const std::string message = failure_of([&] { all(wide); });
  EXPECT_THAT(message, HasSubstr("4000000000"));
  EXPECT_THAT(message, HasSubstr("130000"));
  const std::string absurd = failure_of([&] { TokenDataset::open(data, Split::train, {}); });
  EXPECT_THAT(absurd, HasSubstr("is 4000000000, and a vocabulary has at most"));
}

TEST_F(TokensTest, HeadersOfLlmC) {
  std::string bytes(1024, '\0');
  const std::array<int32_t, 3> start{20240520, 1, 4};
  std::memcpy(bytes.data(), start.data(), sizeof(start));
  const std::string tokens("\x01\x00\x02\x00\x03\x00\x04\x01", 8);
  DataConfig data{.kind = "tokens",
                  .train = {file("a.bin", bytes + tokens)},
                  .validation = {},
                  .token_type = "uint32"};
  data.validation_fraction = 0;
  EXPECT_EQ(all(TokenDataset::open(data, Split::train, {})), (std::vector<int32_t>{1, 2, 3, 260}));
  data.train = {file("b.bin", bytes + tokens.substr(2))};
  const auto open = [&] { TokenDataset::open(data, Split::train, {}); };
  EXPECT_THAT(failure_of(open), HasSubstr("its header"));
}

/// A token file is named *.bin or has its note; other files are texts, for data of kind "tokens".
TEST_F(TokensTest, TextsNeedATokenizer) {
  const std::string text = file("text.txt", "low the");
  const std::string noted = numbers<uint16_t>("noted", {1, 2, 3});
  file("noted.json", "{}");
  EXPECT_TRUE(is_token_file(noted) && is_token_file("none.bin"));
  EXPECT_FALSE(is_token_file(text) || is_token_file("bin"));
  DataConfig data{.kind = "tokens", .train = {noted}, .validation_fraction = 0};
  EXPECT_EQ(all(TokenDataset::open(data, Split::train, {})), (std::vector<int32_t>{1, 2, 3}));
  for (const bool validation : {false, true}) {
    (validation ? data.validation : data.train) = {text};
    data.train = validation ? std::vector{noted} : data.train;
    const std::string message = failure_of(
        [&] { TokenDataset::open(data, validation ? Split::validation : Split::train, {}); });
    EXPECT_THAT(message, HasSubstr(text + " is a text (a token file is named *.bin or has a note"));
    EXPECT_THAT(message, HasSubstr("data tokenize " + text + " --tokenizer TOKENIZER -o " +
                                   (folder_ / "text.bin").string()));
  }
  data.train = {text, noted};
  data.validation.clear();
  const Tokenizer tokenizer = Tokenizer::from_text(byte_level_tokenizer().dump());
  EXPECT_EQ(all(TokenDataset::open(data, Split::train, {.tokenizer = &tokenizer})),
            (std::vector<int32_t>{257, 262, 1, 2, 3}));
}

TEST_F(TokensTest, BadFilesAreNamed) {
  DataConfig data{.train = {(folder_ / "none").string()}, .validation = {}};
  const auto open = [&] { TokenDataset::open(data, Split::train, {.context = 64}); };
  EXPECT_THAT(failure_of(open), HasSubstr("No such file"));
  data.train = {file("empty", "")};
  EXPECT_THAT(failure_of(open), HasSubstr("is empty"));
  const fs::path folder = folder_;
  data.train = {folder.string()};
  EXPECT_THAT(failure_of(open), HasSubstr("not an ordinary file"));
  data.train = {};
  EXPECT_THAT(failure_of(open), HasSubstr("data.train is empty"));
  data.train = {file("short", std::string(70, 'x'))};
  EXPECT_THAT(failure_of(open), HasSubstr("63 tokens"));
  EXPECT_THAT(failure_of(open), HasSubstr("model.context + 1 = 65"));
  data.train = {file("long", std::string(700, 'x'))};
  data.validation = {folder.string() + "/../" + folder.filename().string() + "/long"};
  EXPECT_THAT(failure_of(open), HasSubstr("data.train and in data.validation"));
  data = {.kind = "tokens", .train = {file("odd.bin", "123")}, .validation = {}};
  EXPECT_THAT(failure_of(open), HasSubstr("3 bytes"));
}

TEST_F(TokensTest, TheOrderIsAPureFunctionThatCoversTheData) {
  const DataConfig data{
      .train = {file("a", std::string(40, 'x'))}, .validation = {}, .validation_fraction = 0};
  const auto train = TokenDataset::open(data, Split::train, {.context = 8});
  std::set<int64_t> seen;
  for (int64_t step = 0; step < 100; ++step) {
    for (int64_t i = 0; i < 12; ++i) {
      const int64_t start = train.window_start(1, step, i, 8);
      EXPECT_EQ(start, train.window_start(1, step, i, 8));
      seen.insert(start);
    }
  }
  EXPECT_EQ(*seen.begin(), 0);
  EXPECT_EQ(*seen.rbegin(), 31) << "a window of 9 tokens still fits there";
  EXPECT_EQ(seen.size(), 32U);
  EXPECT_NE(sample_index(1, 0, 0, 1 << 30), sample_index(2, 0, 0, 1 << 30));
  // These numbers fix the order permanently: a resume under a later version must continue it.
  EXPECT_EQ(sample_index(1, 0, 0, 1'000'000), 480729);
  EXPECT_EQ(sample_index(1, 500, 11, 1'000'000), 39162);
  EXPECT_EQ(train.evaluation_windows(8), 4);
  EXPECT_EQ(train.evaluation_windows(39), 1);
  EXPECT_EQ(train.evaluation_windows(40), 0);
}

TEST_F(TokensTest, ImagesAndLabels) {
  const std::string images =
      file("images", testing::idx_file({3, 1, 2}, std::string("\0\xff\x33\0\0\x66", 6)));
  const std::string labels = file("labels", testing::idx_file({3}, "\x04\x09\x01"));
  DataConfig data{
      .kind = "images", .train = {labels, images}, .validation = {}, .validation_fraction = 0.34};
  const auto train = ImageDataset::open(data, Split::train);
  const auto validation = ImageDataset::open(data, Split::validation);
  EXPECT_EQ(train.size(), 2);
  EXPECT_EQ(train.numbers(), 2);
  EXPECT_EQ(train.classes(), 10);
  std::vector<float> row(2);
  EXPECT_EQ(train.read(0, row), 4);
  EXPECT_EQ(row, (std::vector<float>{0.0F, 1.0F}));
  EXPECT_EQ(validation.size(), 1);
  EXPECT_EQ(validation.read(0, row), 1);
  EXPECT_EQ(row, (std::vector<float>{0.0F, 0.4F}));

  const auto open = [&] { ImageDataset::open(data, Split::train); };
  data.train = {images, labels, images, labels};
  EXPECT_THAT(failure_of(open), HasSubstr("images is in data.train twice"));
  data.validation = {images, labels};
  EXPECT_THAT(failure_of(open), HasSubstr("images is in data.train and in data.val"));
  data.validation = {};
  data.train = {images, labels, file("others", testing::idx_file({3, 1, 2}, "123456")), labels};
  EXPECT_EQ(failure_of(open), "") << "labels may be shared";
  data.train = {images};
  EXPECT_THAT(failure_of(open), HasSubstr("in pairs"));
  data.train = {images, file("two", testing::idx_file({2}, "\x04\x09"))};
  EXPECT_THAT(failure_of(open), HasSubstr("3 images"));
  data.train = {file("cut", testing::idx_file({3, 1, 2}, "12345")), labels};
  EXPECT_THAT(failure_of(open), HasSubstr("its header"));
  data.train = {file("packed", std::string("\x1f\x8b\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 17)),
                labels};
  EXPECT_THAT(failure_of(open), HasSubstr("gunzip"));
}

TEST_F(TokensTest, ImagesOfImpossibleSize) {
  constexpr uint32_t kHuge = 0xffffffff;  // its square does not fit 63 bits
  const DataConfig data{.kind = "images",
                        .train = {file("huge", testing::idx_file({1, kHuge, kHuge}, "1")),
                                  file("labels", testing::idx_file({1}, "\x04"))},
                        .validation = {},
                        .validation_fraction = 0};
  const auto open = [&] { ImageDataset::open(data, Split::train); };
  EXPECT_THAT(failure_of(open), HasSubstr("its header"));
}

}  // namespace
}  // namespace espalier::io::tokens_test
