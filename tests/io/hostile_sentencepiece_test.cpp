// SentencePiece models that are made to leave the library's arrays: errors name the file and the
// fix; what loads, encodes and decodes. tests/fuzz cuts models off and flips their bits.
#include <cstring>

#include "io/tokenizer/sentencepiece_file.h"
#include "io/tokenizer/tokenizer.h"
#include "tests/support/failure.h"
#include "tests/support/sentencepiece.h"

namespace espalier::io::hostile_sentencepiece_test {
namespace {

std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7U) {
    out += static_cast<char>(value | 0x80U);
  }
  return out + static_cast<char>(value);
}
std::string number(unsigned field, uint64_t value) { return varint(field << 3U) + varint(value); }
std::string bytes(unsigned field, const std::string& content) {
  return varint(field << 3U | 2U) + varint(content.size()) + content;
}
std::string score(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  std::string out = varint(2U << 3U | 5U);
  for (unsigned byte = 0; byte < 4; ++byte) {
    out += static_cast<char>(bits >> 8 * byte);
  }
  return out;
}
enum Kind : uint8_t { normal = 1, unknown, control, user_defined, unused, byte };
std::string piece(const std::string& text, Kind kind, float value = 0) {
  return bytes(1, bytes(1, text) + score(value) + number(3, kind));
}
/// A unigram model.
std::string model(const std::string& pieces, const std::string& trainer = "",
                  const std::string& normalizer = "") {
  return piece("<unk>", unknown) + pieces + bytes(2, trainer) + bytes(3, normalizer);
}
std::string with_map(const std::string& map) {
  return model(piece("a", normal), "", bytes(2, map));
}
std::string units(std::initializer_list<std::pair<size_t, uint32_t>> set, size_t count = 512) {
  std::string out(4 * count, '\0');
  for (size_t unit = 0; unit < count; ++unit) {
    out[4 * unit] = '\xff';  // no transition
    out[4 * unit + 3] = '\x80';
  }
  for (const auto& [unit, value] : set) {
    std::memcpy(out.data() + 4 * unit, &value, sizeof(value));
  }
  const auto bytes = static_cast<uint32_t>(out.size());
  std::string head(4, '\0');
  std::memcpy(head.data(), &bytes, sizeof(bytes));
  return head + out;
}
uint32_t unit_of(uint32_t offset, unsigned label, bool ends = false) {
  return offset << 10U | (ends ? 1U << 8U : 0U) | label;
}

std::string refusal(const std::string& text) {
  return failure_of([&] { Tokenizer::from_text(text, "some.model"); });
}

/// Loads, and uses what loads; the library writes nothing to stderr. Whether it loads.
bool try_model(const std::string& text) {
  bool loaded = false;
  ::testing::internal::CaptureStderr();
  const std::string failure = failure_of([&] {
    const Tokenizer tokenizer = Tokenizer::from_text(text, "some.model");
    loaded = true;
    for (const char* words :
         {"", "the quick brown fox\n\n über 123  ▁x", " <extra_0>ﬁ½ﷺ\u3000¨ "}) {
      const auto ids = tokenizer.encode(words);
      for (const int32_t id : ids) {
        EXPECT_TRUE(id >= 0 && id < tokenizer.vocabulary());
      }
      tokenizer.decode(ids);
    }
  });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_TRUE(loaded || !failure.empty());
  EXPECT_TRUE(failure.empty() || failure.find("some.model") != std::string::npos) << failure;
  return loaded;
}

TEST(HostileSentencePiece, PiecesThatTheLibraryDoesNotBear) {
  EXPECT_TRUE(try_model(model(piece("a", normal) + piece("▁", normal))));
  for (const std::string& whole : {llama_like_sentencepiece(), t5_like_sentencepiece()}) {
    EXPECT_THAT(
        refusal(whole.substr(0, whole.size() / 2)),
        HasSubstr("some.model: the SentencePiece model is cut off or damaged; download it"));
  }
  EXPECT_THAT(refusal(model(piece("a", normal), number(3, 3))),
              HasSubstr("some.model: model_type WORD is not supported; supported: UNIGRAM, BPE"));
  EXPECT_THAT(refusal(model(piece("a", normal), number(3, 7))), HasSubstr("unknown model_type 7"));
  EXPECT_THAT(refusal(model(piece("a", static_cast<Kind>(9)))),
              HasSubstr("piece 1 of the unknown"));
  EXPECT_THAT(refusal(model(piece("", normal))), HasSubstr("piece 1 of 0 bytes"));
  EXPECT_THAT(refusal(model(piece(std::string(1025, 'a'), normal))), HasSubstr("of 1025 bytes"));
  EXPECT_THAT(refusal(model(piece(std::string("a\0b", 3), normal))), HasSubstr("no text in UTF-8"));
  EXPECT_THAT(refusal(model(piece("\xff", normal))), HasSubstr("no text in UTF-8"));
  EXPECT_THAT(refusal(model(piece("a", normal, std::nanf("")))), HasSubstr("no finite number"));
  EXPECT_THAT(refusal(model(piece("a", normal) + piece("a", normal))),
              HasSubstr("SentencePiece cannot load the model (a is already defined.)"));
  EXPECT_THAT(refusal(piece("a", normal)), HasSubstr("unk is not defined"));
  EXPECT_THAT(refusal(model(piece("<0x00>", byte))), HasSubstr("`byte_fallback` is false"));
  EXPECT_NE(refusal(model("")), "") << "a unigram model without pieces";
  std::string nested;
  for (int i = 1; i <= 65; ++i) {
    nested += piece(std::string(static_cast<size_t>(i), 'a'), user_defined);
    if (i == 64) {
      EXPECT_TRUE(try_model(model(nested)));
    }
  }
  EXPECT_THAT(refusal(model(nested)), HasSubstr("65 user-defined pieces that begin alike"));
}

TEST(HostileSentencePiece, MapsOfCharactersStayWithinTheirArray) {
  constexpr const char* kDamaged = "has a damaged map of characters";
  const std::string text = std::string("X\0", 2);
  // The root leads to place 256, where "a" leads to place 0, whose unit holds 0, the place of "X".
  const uint32_t value = 1U << 31U;
  const auto map = [&](uint32_t offset, uint32_t end) {
    return units({{0, unit_of(256, 0)},
                  {256 ^ 'a', unit_of(offset, 'a', true)},
                  {256 ^ 'a' ^ offset, end}}) +
           text;
  };
  const uint32_t near = 256 ^ 'a' ^ 384;
  EXPECT_TRUE(try_model(with_map(map(near, value))));
  EXPECT_THAT(refusal(with_map(map(near, value | 2U))), HasSubstr(kDamaged)) << "behind the texts";
  EXPECT_THAT(refusal(with_map(units({{0, unit_of(512, 0)}}) + text)), HasSubstr(kDamaged));
  EXPECT_THAT(
      refusal(with_map(units({{0, unit_of(256, 0)}, {256 ^ 'a', unit_of(512, 'a')}}) + text)),
      HasSubstr(kDamaged));
  EXPECT_THAT(
      refusal(with_map(units({{0, unit_of(256, 0)}, {256 ^ 'a', unit_of('a', 'a')}}) + text)),
      HasSubstr(kDamaged))
      << "a cycle";
  EXPECT_THAT(refusal(with_map(units({{0, unit_of(256, 0)}}, 300) + text)), HasSubstr(kDamaged));
  EXPECT_THAT(refusal(with_map(units({{0, unit_of(256, 0)}}) + "X")), HasSubstr(kDamaged))
      << "without a zero at the end";
  EXPECT_THAT(refusal(with_map(units({{0, unit_of(256, 0)}}))), HasSubstr(kDamaged));
  EXPECT_THAT(refusal(with_map(map(near, value).replace(0, 4, "\xff\xff\xff\x7f"))),
              HasSubstr(kDamaged));
  EXPECT_THAT(refusal(with_map("abc")), HasSubstr(kDamaged));
}

}  // namespace
}  // namespace espalier::io::hostile_sentencepiece_test
