// Tokens of small tokenizers, counted by hand; streams; threads. Beside the library `tokenizers`:
// tests/scripts/tokenizers_test.py.
#include "io/tokenizer/tokenizer.h"

#include <random>

#include "tests/io/tokenizer_examples.h"
#include "tests/io/tokenizer_streams.h"
#include "tests/support/failure.h"

namespace espalier::io::tokenizer_test {
namespace {

using Ids = std::vector<int32_t>;

Tokenizer made(const TokenizerJson& json) { return Tokenizer::from_text(json.dump()); }

TEST(Tokenizer, BytesAreMergedInOrderOfRank) {
  const Tokenizer tokenizer = made(byte_level_tokenizer());
  EXPECT_EQ(tokenizer.vocabulary(), 301);
  EXPECT_THAT(tokenizer.encode("lower"), ElementsAre(259));
  EXPECT_THAT(tokenizer.encode("lowlow low the"), ElementsAre(257, 257, 266, 262));
  // GPT-2's words: the space before a word is the word's, the other spaces are a word.
  EXPECT_THAT(tokenizer.encode("a   low"), ElementsAre('a', ' ', ' ', 266));
  EXPECT_THAT(tokenizer.encode("it's 1234\n\n"),
              ElementsAre('i', 't', '\'', 's', ' ', 264, '4', 265));
  EXPECT_THAT(tokenizer.encode("aaaaa"), ElementsAre(267, 267, 'a')) << "the left pair first";
  EXPECT_THAT(tokenizer.encode("é"), ElementsAre(0xc3, 0xa9));
  EXPECT_THAT(tokenizer.encode(""), ElementsAre());
  EXPECT_EQ(tokenizer.encode(std::string(101, 'a')).size(), 51U) << "by a heap";
}

TEST(Tokenizer, AddedTokensComeFirst) {
  TokenizerJson json = byte_level_tokenizer();
  json["added_tokens"].push_back(
      {{"id", 301}, {"content", "<|end|>>"}, {"special", false}, {"normalized", false}});
  json["added_tokens"].push_back(
      {{"id", 302}, {"content", "<strip>"}, {"special", true}, {"lstrip", true}, {"rstrip", true}});
  json["added_tokens"].push_back(
      {{"id", 257}, {"content", "low"}, {"special", false}, {"single_word", true}});
  const Tokenizer tokenizer = made(json);
  EXPECT_THAT(tokenizer.encode("a<|end|>b"), ElementsAre('a', 300, 'b'));
  EXPECT_THAT(tokenizer.encode("<|end|>>"), ElementsAre(301)) << "the longest";
  EXPECT_THAT(tokenizer.encode("a \n <strip>\t b"), ElementsAre('a', 302, 'b'));
  EXPECT_THAT(tokenizer.encode("a low"), ElementsAre('a', ' ', 257)) << "not \" low\"";
  EXPECT_THAT(tokenizer.encode("a lower"), ElementsAre('a', ' ', 259)) << "within a word";
  EXPECT_EQ(tokenizer.decode(Ids{'a', 300, 'b'}), "a<|end|>b");
  EXPECT_EQ(tokenizer.decode(Ids{'a', 300, 'b'}, false), "ab");
  EXPECT_TRUE(tokenizer.is_special(300));
  EXPECT_FALSE(tokenizer.is_special(301));
  EXPECT_EQ(tokenizer.id_of("<|end|>"), 300);
  EXPECT_EQ(tokenizer.id_of("Ġthe"), 262);
  EXPECT_EQ(tokenizer.id_of("nothing"), -1);
}

TEST(Tokenizer, CharactersWithoutTokenAreBytes) {
  const Tokenizer tokenizer = made(metaspace_tokenizer());
  EXPECT_THAT(tokenizer.encode("hi"), ElementsAre(1, 265));
  EXPECT_THAT(tokenizer.encode("hi the", false), ElementsAre(265, 268));
  EXPECT_THAT(tokenizer.encode("hi  the", false), ElementsAre(265, 259, 268));
  EXPECT_THAT(tokenizer.encode("é!", false), ElementsAre(259, 3 + 0xc3, 3 + 0xa9, 3 + '!'));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("hi the é!"), false), "hi the é!");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("hi")), "<s> hi");
  EXPECT_EQ(tokenizer.decode(Ids{3 + 0xc3}), "\ufffd") << "a part of a character";
}

TEST(Tokenizer, UnknownCharactersAreFused) {
  TokenizerJson json = metaspace_tokenizer();
  json["model"]["byte_fallback"] = false;
  EXPECT_THAT(made(json).encode("xyhi", false), ElementsAre(259, 0, 260, 261));
  json["model"]["fuse_unk"] = false;
  EXPECT_THAT(made(json).encode("xyhi", false), ElementsAre(259, 0, 0, 260, 261));
  json["model"]["unk_token"] = nullptr;
  EXPECT_THAT(made(json).encode("xyhi", false), ElementsAre(265)) << "left out";
  json["model"]["unk_token"] = "<none>";
  EXPECT_THAT(failure_of([&] { made(json).encode("x"); }),
              HasSubstr("model.unk_token \"<none>\" is not in model.vocab"));
}

TEST(Tokenizer, WholeWordsMayIgnoreMerges) {
  TokenizerJson json = byte_level_tokenizer();
  json["model"]["merges"] = TokenizerJson::array();
  EXPECT_EQ(made(json).encode("lower").size(), 5U);
  json["model"]["ignore_merges"] = true;
  EXPECT_THAT(made(json).encode("lower the"), ElementsAre(259, 262));
}

TEST(Tokenizer, InvalidUtf8IsReplaced) {
  const Tokenizer tokenizer = made(byte_level_tokenizer());
  EXPECT_EQ(tokenizer.encode("a\xff"), tokenizer.encode("a\ufffd"));
  // A part that could begin a character is one; so is each other byte.
  EXPECT_EQ(tokenizer.encode("\xe2\x82z\xc0\xaf\xed\xa0\x80"),
            tokenizer.encode("\ufffdz\ufffd\ufffd\ufffd\ufffd\ufffd"));
  EXPECT_EQ(tokenizer.decode(Ids{0xe2, 0x82, 'z'}), "\ufffdz");
}

TEST(Tokenizer, IdsWithoutTokenAreNamed) {
  const Tokenizer tokenizer = made(byte_level_tokenizer());
  for (const int32_t id : {-1, 268, 301, INT32_MAX}) {
    EXPECT_THAT(failure_of([&] {
                  tokenizer.decode(Ids{97, id});
                }),
                HasSubstr(fmt::format("token {} at place 1 is not in the tokenizer's", id)));
  }
}

TEST(Tokenizer, ItsTextMakesAnEqualOne) {
  const Tokenizer tokenizer = made(metaspace_tokenizer());
  const Tokenizer again = Tokenizer::from_text(tokenizer.text());
  EXPECT_EQ(again.encode("hi the é"), tokenizer.encode("hi the é"));
}

/// Words, white space, marks, and added tokens.
std::string random_text(std::mt19937& random, size_t pieces) {
  const std::vector<std::string> all{"low",  "lower", " the",    "the",     " ",     "  ",
                                     "\n",   "hi",    "é",       "e\u0301", "字",    "🙂",
                                     "123",  "aaaa",  "<|end|>", "<s>",     "'s",    "<strip>",
                                     "\xff", "\xe2",  "▁",       "data",    "\u00a0"};
  std::string text;
  for (size_t i = 0; i < pieces; ++i) {
    text += all[random() % all.size()];
  }
  return text;
}

/// Variants of the examples in which texts are cut in different ways.
std::vector<std::pair<std::string, TokenizerJson>> variants() {
  std::vector<std::pair<std::string, TokenizerJson>> out;
  TokenizerJson bytes = byte_level_tokenizer();
  out.emplace_back("bytes", bytes);
  bytes["pre_tokenizer"]["add_prefix_space"] = true;
  bytes["normalizer"] = {{"type", "NFC"}};
  bytes["added_tokens"].push_back(
      {{"id", 302}, {"content", "<strip>"}, {"special", true}, {"lstrip", true}, {"rstrip", true}});
  bytes["added_tokens"].push_back({{"id", 303}, {"content", "  "}, {"special", false}});
  out.emplace_back("prefixed", bytes);
  const auto split = [](const char* behavior) -> TokenizerJson {
    return {{"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", behavior}};
  };
  for (const char* behavior :
       {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"}) {
    bytes["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Digits"}, {"individual_digits", false}},
          split(behavior),
          {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
    out.emplace_back(behavior, bytes);
  }
  TokenizerJson characters = metaspace_tokenizer();
  out.emplace_back("characters", characters);
  characters["normalizer"] = nullptr;
  for (const char* scheme : {"first", "always", "never"}) {
    for (const bool cut : {false, true}) {
      characters["pre_tokenizer"] = {
          {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", cut}};
      out.emplace_back(scheme, characters);
    }
  }
  return out;
}

TEST(TokenizerStream, GivesTheTokensOfTheWholeText) {
  std::mt19937 random(1);
  for (const auto& [name, json] : variants()) {
    SCOPED_TRACE(name);
    expect_streams(
        made(json), random, [&](size_t pieces) { return random_text(random, pieces); }, 30000,
        {777}, 0.95);
  }
}

/// A pattern that looks back may see another text after a cut: the whole text is kept.
TEST(TokenizerStream, KeepsATextThatCannotBeCut) {
  TokenizerJson json = byte_level_tokenizer();
  json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "(?<=l)o|\\s+"}}}, {"behavior", "Isolated"}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  const Tokenizer tokenizer = made(json);
  std::mt19937 random(2);
  const std::string text = random_text(random, 2000);
  size_t before_end = 0;
  EXPECT_EQ(streamed(tokenizer, text, 100, 10, &before_end), tokenizer.encode(text, false));
  EXPECT_EQ(before_end, 0U);
}

TEST(TokenizerStream, BeginsAnotherTextAfterTheEnd) {
  const Tokenizer tokenizer = made(metaspace_tokenizer());
  TokenizerStream stream(tokenizer);
  Ids ids;
  for (int i = 0; i < 2; ++i) {
    ids.clear();
    stream.add("hi the", ids);
    stream.finish(ids);
    EXPECT_THAT(ids, ElementsAre(265, 268));
  }
}

TEST(Tokenizer, ThreadsShareOne) {
  std::mt19937 random(3);
  expect_shared(made(byte_level_tokenizer()), random_text(random, 3000));
}

}  // namespace
}  // namespace espalier::io::tokenizer_test
