// SentencePiece models: tokens are those of its library for the whole text, also in streams; texts
// around it; checkpoints. Models are trained here.
#include <sentencepiece_processor.h>

#include <fstream>
#include <random>

#include "io/checkpoint/stored_tokenizer.h"
#include "io/tokenizer/sentencepiece_file.h"
#include "io/tokenizer/tokenizer.h"
#include "tests/io/tokenizer_streams.h"
#include "tests/support/failure.h"
#include "tests/support/sentencepiece.h"
#include "tests/support/support.h"

namespace espalier::io::sentencepiece_test {
namespace {

using espalier::testing::TempDir;
using Ids = std::vector<int32_t>;

std::string random_text(std::mt19937& random, size_t pieces) {
  static const std::vector<std::string> all{
      "n",       "e",         "w",   "o",      "the",    "low",    "er",   " the",    " new",
      " ",       "  ",        "   ", "\n",     "\n\n",   "\t",     "\r\n", "über",    "é",
      "字",      "🙂",      "▁",   " ▁",     "▁▁",     "123",    "aaaa", "<s>",     "<0x41>",
      "ﬁ",       "½",         "ﷺ",   "\u00a0", "\u3000", "\u200b", "\x01", "e\u0301", "¨",
      "<extra>", "<extra_0>", "{}",  "\u0308", "ＡＢＣ", "㍿"};
  std::string text;
  for (size_t i = 0; i < pieces; ++i) {
    text += all[random() % all.size()];
  }
  return text;
}

struct Variant {
  std::string name, model;
  bool bpe = true;
  bool cuts = true;
};

/// The model with another text of the same length in place of a piece's.
std::string changed_piece(std::string model, const std::string& from, const std::string& to) {
  const size_t at = model.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return model.replace(at, from.size(), to);
}

/// Models whose texts are normalized and cut in different ways.
const std::vector<Variant>& variants() {
  static const std::vector<Variant> all = [] {
    const auto trained = [](const std::string& options) {
      return train_sentencepiece(options, sentencepiece_sentences());
    };
    const std::string identity = "--normalization_rule_name=identity ";
    const std::string keeps = identity + "--remove_extra_whitespaces=false ";
    const std::string bpe = "--model_type=bpe --vocab_size=150 ";
    const std::string bytes = "--model_type=bpe --vocab_size=400 --byte_fallback=true ";
    const std::string unigram = "--model_type=unigram --vocab_size=120 --hard_vocab_limit=false ";
    return std::vector<Variant>{
        {"llama", llama_like_sentencepiece()},
        {"gemma", trained(bytes + keeps +
                          "--add_dummy_prefix=false "
                          "--user_defined_symbols=▁▁,▁▁▁,<extra>,<extra_0>,ew,aaa")},
        {"bpe with pieces of lines",
         trained(bytes + keeps + "--user_defined_symbols=\n,\n\n,\t,e,▁▁,▁th,w▁,<s,aaa,é")},
        {"bpe with first spaces",
         trained(bytes + identity + "--user_defined_symbols=▁n,▁▁,ew,w,é")},
        {"bpe with strange pieces",
         changed_piece(trained(bytes + keeps + "--user_defined_symbols=er▁x,low▁,XY"), "XY", "o ")},
        {"bpe", trained(bpe)},
        {"bpe without first space", trained(bpe + "--add_dummy_prefix=false")},
        {"bpe with all spaces", trained(bpe + "--remove_extra_whitespaces=false")},
        {"bpe nfkc_cf", trained(bytes + "--normalization_rule_name=nfkc_cf")},
        {"bpe with crossing pieces", trained(bytes + keeps + "--split_by_whitespace=false")},
        {"bpe identity", trained(bpe + identity)},
        {"characters", trained("--model_type=char --vocab_size=80 --hard_vocab_limit=false")},
        {"suffix", trained(bytes + "--treat_whitespace_as_suffix=true"), true, false},
        {"t5", t5_like_sentencepiece(), false},
        {"unigram", trained(unigram + keeps), false},
        {"unigram with bytes",
         trained("--model_type=unigram --vocab_size=400 --hard_vocab_limit=false "
                 "--byte_fallback=true --user_defined_symbols=▁▁,ew"),
         false}};
  }();
  return all;
}

TEST(SentencePiece, TokensAreThoseOfTheLibrary) {
  std::mt19937 random(1);
  for (const Variant& variant : variants()) {
    const Tokenizer tokenizer = Tokenizer::from_text(variant.model, "tokenizer.model");
    sentencepiece::SentencePieceProcessor library;
    ASSERT_TRUE(library.LoadFromSerializedProto(variant.model).ok());
    EXPECT_EQ(tokenizer.vocabulary(), library.GetPieceSize());
    EXPECT_EQ(tokenizer.text(), variant.model);
    EXPECT_THAT(tokenizer.encode(""), ElementsAre(library.bos_id()));
    for (int round = 0; round < 400; ++round) {
      const std::string text = random_text(random, 1 + random() % 40);
      const Ids ids = tokenizer.encode(text, false);
      ASSERT_EQ(ids, library.EncodeAsIds(text)) << variant.name << ": " << text;
      Ids known;
      std::ranges::copy_if(ids, std::back_inserter(known),
                           [&](int32_t id) { return id != library.unk_id(); });
      ASSERT_EQ(tokenizer.decode(ids), library.DecodeIds(ids)) << variant.name << ": " << text;
      ASSERT_EQ(tokenizer.decode(ids, false), library.DecodeIds(known)) << variant.name;
    }
    if (variant.bpe) {  // unigram models encode long texts in parts
      const std::string text = random_text(random, 50000);
      EXPECT_TRUE(tokenizer.encode(text, false) == library.EncodeAsIds(text)) << variant.name;
    }
  }
}

TEST(SentencePiece, StreamsGiveTheTokensOfTheWholeText) {
  std::mt19937 random(2);
  const auto text_of = [&](size_t pieces) {
    std::string text = random_text(random, pieces);
    if (random() % 4 == 0) {
      text.insert(random() % text.size(), "\xff");
    }
    return text;
  };
  for (const Variant& variant : variants()) {
    SCOPED_TRACE(variant.name);
    expect_streams(Tokenizer::from_text(variant.model), random, text_of, 90000,
                   {777, 40009, 300007}, variant.cuts ? 0.5 : 0);
  }
}

TEST(SentencePiece, TextsComeBack) {
  const Tokenizer tokenizer = Tokenizer::from_text(llama_like_sentencepiece());
  std::mt19937 random(3);
  for (int round = 0; round < 100; ++round) {
    std::string text = random_text(random, 30);
    for (size_t at = 0; (at = text.find("▁", at)) != std::string::npos;) {
      text.replace(at, 3, "_");  // it is a space to the model
    }
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text), false), text);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), "<s>" + text);
  }
  const Ids ids = tokenizer.encode("low the");
  EXPECT_EQ(ids.front(), tokenizer.id_of("<s>"));
  EXPECT_TRUE(tokenizer.is_special(tokenizer.id_of("<s>")));
  EXPECT_TRUE(tokenizer.is_special(tokenizer.id_of("<unk>")));
  EXPECT_FALSE(tokenizer.is_special(tokenizer.id_of("▁the")));
  EXPECT_FALSE(tokenizer.is_special(-1));
  EXPECT_EQ(tokenizer.id_of("nothing"), -1);
  EXPECT_EQ(tokenizer.id_of(""), -1);
  const int32_t past = static_cast<int32_t>(tokenizer.vocabulary());
  for (const int32_t id : {-1, past}) {
    EXPECT_THAT(
        failure_of([&] {
          tokenizer.decode(Ids{ids[1], id});
        }),
        HasSubstr(fmt::format("token {} at place 1 is not in the tokenizer's vocabulary", id)));
  }
  const int32_t end = tokenizer.id_of("</s>");
  EXPECT_EQ(tokenizer.decode(Ids{ids[1], end, ids[1]}), "low</s> low");
}

TEST(SentencePiece, TheConfigTellsTokensAroundTheText) {
  const std::string model = llama_like_sentencepiece();
  const auto around = [&](const std::string& config) {
    return Tokenizer::from_text(model, "tokenizer.model", config).encode("");
  };
  EXPECT_THAT(around(""), ElementsAre(1));
  EXPECT_THAT(around("{}"), ElementsAre(1));
  EXPECT_THAT(around(R"({"add_bos_token": null})"), ElementsAre(1));
  EXPECT_THAT(around(R"({"add_bos_token": false})"), ElementsAre());
  EXPECT_THAT(around(R"({"add_bos_token": true, "add_eos_token": true})"), ElementsAre(1, 2));
  EXPECT_THAT(around(R"({"add_eos_token": true, "eos_token": {"content": "<unk>"}})"),
              ElementsAre(1, 0));
  EXPECT_THAT(failure_of([&] { around("[]"); }), HasSubstr("tokenizer_config.json is no JSON"));
  EXPECT_THAT(failure_of([&] { around(R"({"add_bos_token": 1})"); }),
              HasSubstr("neither true nor false"));
  const std::string without = train_sentencepiece("--model_type=bpe --vocab_size=150 --bos_id=-1",
                                                  sentencepiece_sentences());
  EXPECT_THAT(Tokenizer::from_text(without).encode(""), ElementsAre());
  EXPECT_THAT(
      failure_of([&] { Tokenizer::from_text(without, "x.model", R"({"add_bos_token": true})"); }),
      HasSubstr("x.model: its tokenizer_config.json has \"add_bos_token\": true"));

  const TempDir dir;
  std::ofstream(dir / "any.name", std::ios::binary) << model;
  EXPECT_THAT(Tokenizer::from_file(dir / "any.name").encode(""), ElementsAre(1));
  std::ofstream(dir / "tokenizer_config.json") << R"({"add_bos_token": false})";
  EXPECT_THAT(Tokenizer::from_file(dir / "any.name").encode(""), ElementsAre());
}

TEST(SentencePiece, ThreadsShareOne) {
  std::mt19937 random(4);
  for (const std::string& model : {llama_like_sentencepiece(), t5_like_sentencepiece()}) {
    expect_shared(Tokenizer::from_text(model), random_text(random, 3000));
  }
}

TEST(SentencePiece, TheContentTellsTheFormat) {
  EXPECT_TRUE(is_sentencepiece(llama_like_sentencepiece()));
  EXPECT_TRUE(is_sentencepiece(t5_like_sentencepiece()));
  for (const char* json : {"", "{}", "\n{\n  \"version\": 1}", " {\"a\": 1}", "\n\n"}) {
    EXPECT_FALSE(is_sentencepiece(json)) << json;
  }
}

TEST(StoredTokenizer, Base64KeepsAllBytes) {
  EXPECT_EQ(to_base64(std::string("f\0o", 3)), "ZgBv");
  EXPECT_EQ(to_base64("foob"), "Zm9vYg==");
  EXPECT_EQ(to_base64("fooba"), "Zm9vYmE=");
  std::mt19937 random(5);
  for (size_t bytes = 0; bytes < 70; ++bytes) {
    std::string text;
    for (size_t i = 0; i < bytes; ++i) {
      text += static_cast<char>(random());
    }
    EXPECT_EQ(from_base64(to_base64(text)), text);
  }
  for (const char* damaged : {"Zg", "Zg=a", "Z===", "====", "Zm9v!mE=", "Zg==Zg=="}) {
    EXPECT_FALSE(from_base64(damaged).has_value()) << damaged;
  }
}

TEST(StoredTokenizer, IsThatOfTheTexts) {
  const std::string model = llama_like_sentencepiece();
  ModelTexts texts{{"hub.tokenizer_config.json", R"({"add_bos_token": false})"}};
  EXPECT_FALSE(tokenizer_of(texts, "a.h5").has_value());
  store_tokenizer({.file = kTokenizerFiles[1], .bytes = model}, texts);
  EXPECT_EQ(stored_tokenizer(texts, "a.h5")->file.name, "tokenizer.model");
  const auto tokenizer = tokenizer_of(texts, "a.h5");
  EXPECT_EQ(tokenizer->text(), model);
  EXPECT_THAT(tokenizer->encode(""), ElementsAre());
  texts["hub.tokenizer.model"].back() = '!';
  EXPECT_THAT(failure_of([&] { tokenizer_of(texts, "a.h5"); }),
              HasSubstr("a.h5: its text \"hub.tokenizer.model\" is damaged"));
  remove_tokenizer(texts);
  EXPECT_EQ(texts.size(), 1U);
}

}  // namespace
}  // namespace espalier::io::sentencepiece_test
