// Files that are no tokenizer.json, or one with parts that are not supported: errors name the
// place and the fix.
#include <unistd.h>

#include <chrono>

#include "io/tokenizer/tokenizer.h"
#include "tests/io/tokenizer_examples.h"
#include "tests/support/failure.h"

namespace espalier::io::hostile_tokenizer_test {
namespace {

using Json = TokenizerJson;

std::string refusal(const Json& json) {
  return failure_of([&] { Tokenizer::from_text(json.dump()); });
}

TEST(HostileTokenizer, WhatIsNoTokenizerIsNamed) {
  for (const std::string text : {"", "{", "[]", "7", "\xff", "\"a\""}) {
    EXPECT_THAT(failure_of([&] { Tokenizer::from_text(text, "some.json"); }),
                HasSubstr("some.json is no JSON object"))
        << text;
  }
  std::string deep = "{\"model\":";
  for (int i = 0; i < 100'000; ++i) {
    deep += "[";
  }
  EXPECT_THAT(failure_of([&] { Tokenizer::from_text(deep); }), HasSubstr("at most 64 levels"));
  EXPECT_THAT(failure_of([&] { Tokenizer::from_file("/nowhere/tokenizer.json"); }),
              HasSubstr("/nowhere/tokenizer.json"));
}

TEST(HostileTokenizer, MissingPartsAreNamed) {
  Json json = byte_level_tokenizer();
  json.erase("model");
  EXPECT_THAT(refusal(json), HasSubstr("tokenizer.json: model is missing"));
  for (const char* part : {"vocab", "merges"}) {
    json = byte_level_tokenizer();
    json["model"].erase(part);
    EXPECT_THAT(refusal(json), HasSubstr(fmt::format("model.{} is missing", part)));
    for (const Json& other : {Json(), Json(7), Json("text"), Json(true)}) {
      json["model"][part] = other;
      EXPECT_THAT(refusal(json), HasSubstr(fmt::format("model.{} is no ", part)));
    }
  }
  json = byte_level_tokenizer();
  json["pre_tokenizer"].erase("type");
  EXPECT_THAT(refusal(json), HasSubstr("pre_tokenizer.type is missing"));
}

TEST(HostileTokenizer, OtherTypesAreNamedWithThoseThatAreSupported) {
  Json json = byte_level_tokenizer();
  json["model"]["type"] = "Unigram";
  EXPECT_THAT(refusal(json), HasSubstr("model.type \"Unigram\" is not supported; supported: BPE"));
  for (const char* part : {"normalizer", "pre_tokenizer", "post_processor", "decoder"}) {
    json = byte_level_tokenizer();
    json[part] = {{"type", "Magic"}};
    const std::string type = fmt::format("{}.type \"Magic\" is not supported; supported: ", part);
    EXPECT_THAT(refusal(json), HasSubstr(type));
    EXPECT_THAT(refusal(json), HasSubstr("Sequence"));
  }
  json = byte_level_tokenizer();
  json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {{{"type", "Magic"}}}}};
  EXPECT_THAT(refusal(json), HasSubstr("pre_tokenizer.pretokenizers[0].type \"Magic\""));
  json["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers", {{{"type", "ByteLevel"}}, {{"type", "Digits"}}}}};
  EXPECT_THAT(refusal(json), HasSubstr("pretokenizers[1] stands behind ByteLevel"));
  for (const char* mark : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    json = byte_level_tokenizer();
    json["model"][mark] = "</w>";
    EXPECT_THAT(refusal(json), HasSubstr(fmt::format("model.{} \"</w>\"", mark)));
    json["model"][mark] = "";
    EXPECT_EQ(refusal(json), "");
  }
  json = byte_level_tokenizer();
  json["model"]["dropout"] = 0.1;
  EXPECT_THAT(refusal(json), HasSubstr("model.dropout is not supported"));
}

TEST(HostileTokenizer, IdsAndMergesMustFit) {
  for (const Json& id : {Json(-1), Json(1 << 24), Json(1.5), Json("1"), Json(1e300), Json()}) {
    Json json = byte_level_tokenizer();
    json["model"]["vocab"]["zz"] = id;
    EXPECT_THAT(refusal(json), HasSubstr("\"zz\" an id that is no integer from 0 to 16777215"));
  }
  Json json = byte_level_tokenizer();
  json["model"]["vocab"]["zz"] = 97;
  EXPECT_THAT(refusal(json), HasSubstr("gives the id 97 to"));
  for (const Json& merge : {Json("a"), Json("a b c"), Json(7), Json({"a"}), Json({"a", 7}),
                            Json(""), Json(" a"), Json({"a", "b", "c"})}) {
    json = byte_level_tokenizer();
    json["model"]["merges"].push_back(merge);
    EXPECT_THAT(refusal(json), HasSubstr("model.merges has an element 12 that is no pair"));
  }
  json = byte_level_tokenizer();
  json["model"]["merges"].push_back("x y");
  EXPECT_THAT(refusal(json), HasSubstr("element 12 whose token \"xy\" is not in model.vocab"));
  json = byte_level_tokenizer();
  json["model"]["vocab"] = Json::object();
  json["model"]["merges"] = Json::array();
  json["added_tokens"] = Json::array();
  EXPECT_THAT(refusal(json), HasSubstr("model.vocab has no tokens"));
}

/// Each merge makes one symbol of two: merges that follow each other in a circle end, too.
TEST(HostileTokenizer, MergesInACircleEnd) {
  Json json = byte_level_tokenizer();
  json["model"]["vocab"]["ab"] = 400;
  json["model"]["vocab"]["ba"] = 401;
  json["model"]["vocab"]["aba"] = 402;
  json["model"]["merges"] = {"a b", "b a", "ab a", "a ba", "a b"};
  const Tokenizer tokenizer = Tokenizer::from_text(json.dump());
  std::string text;
  for (int i = 0; i < 5000; ++i) {
    text += "ab";
  }
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
}

TEST(HostileTokenizer, AddedTokensMustFit) {
  for (const auto& [token, message] : std::vector<std::pair<Json, std::string>>{
           {{{"id", 5}, {"content", ""}}, "content has 0 bytes"},
           {{{"id", 500}, {"content", std::string(2000, 'a')}}, "content has 2000 bytes"},
           {{{"id", 5}}, "content is missing"},
           {{{"id", -5}, {"content", "x"}}, "id is no integer"},
           {{{"id", 99}, {"content", "lo"}}, "id is 99, but another place"},
           {{{"id", 256}, {"content", "other"}}, "gives that id to \"lo\""},
           {{{"id", 300}, {"content", "other"}}, "gives that id to \"<|end|>\""},
           {{{"id", 500}, {"content", "x"}, {"lstrip", 7}}, "lstrip is neither true nor false"},
           {7, "is no object"}}) {
    Json json = byte_level_tokenizer();
    json["added_tokens"].push_back(token);
    EXPECT_THAT(refusal(json), HasSubstr(message));
    EXPECT_THAT(refusal(json), HasSubstr("added_tokens[1]"));
  }
  Json json = byte_level_tokenizer();
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
      {"special_tokens", {{"<s>", {{"ids", {999}}}}}}};
  EXPECT_THAT(refusal(json), HasSubstr("adds the token 999, which the file does not define"));
  json["post_processor"]["special_tokens"] = Json::object();
  EXPECT_THAT(refusal(json), HasSubstr("special_tokens.<s> is missing"));
}

Json with_pattern(const std::string& expression) {
  Json json = byte_level_tokenizer();
  json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", "Isolated"}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  return json;
}

TEST(HostileTokenizer, PatternsAreCheckedAndBounded) {
  EXPECT_THAT(refusal(with_pattern("(")), HasSubstr("pattern.Regex is no regular expression"));
  EXPECT_THAT(refusal(with_pattern("[a[b]]")), HasSubstr("a class within a class"));
  EXPECT_THAT(refusal(with_pattern("[a&&b]")), HasSubstr("a class within a class"));
  EXPECT_THAT(refusal(with_pattern("a\\Kb")), HasSubstr("\\K"));
  EXPECT_THAT(refusal(with_pattern(std::string(20'000, 'a'))), HasSubstr("at most 16384"));
  EXPECT_NE(refusal(with_pattern("(((a{1,1000}){1,1000}){1,1000})")), "");
  EXPECT_NE(refusal(with_pattern("\\")), "");
  EXPECT_NE(refusal(with_pattern("[")), "");
  EXPECT_EQ(refusal(with_pattern("[]a]|[^]]|[[:alpha:]]|\\p{Han}|\\p{L}|\\w|[\\w\\s]|")), "");
  // Time exponential in the length of the text, without a bound.
  const Tokenizer slow = Tokenizer::from_text(with_pattern("(a|a|aa)+$").dump());
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(failure_of([&] { slow.encode(std::string(200, 'a') + "b"); }),
              HasSubstr("cannot be matched"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(HostileTokenizer, AnyPartMayBeOfAnotherKind) {
  const Json whole = metaspace_tokenizer();
  const Json places = whole.flatten();
  for (const Json& other : {Json(), Json(-1), Json("text"), Json::array(), Json::object()}) {
    for (const auto& [pointer, value] : places.items()) {
      if (pointer.starts_with("/model/vocab/")) {
        continue;
      }
      Json json = whole;
      json[Json::json_pointer(pointer)] = other;
      const std::string message = failure_of([&] {
        const Tokenizer tokenizer = Tokenizer::from_text(json.dump());
        tokenizer.decode(tokenizer.encode("hi the é <s>"));
      });
      EXPECT_TRUE(message.empty() || message.starts_with("tokenizer.json: ")) << message;
    }
  }
}

}  // namespace
}  // namespace espalier::io::hostile_tokenizer_test
