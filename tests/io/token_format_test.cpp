// Types of token files: those of other programs are recognised or refused, and no file of uint16 or
// uint32 is.
#include "io/data/token_format.h"

#include <cmath>
#include <fstream>

#include "io/data/tokens.h"
#include "src/core/rng.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"

namespace espalier::io::token_format_test {
namespace {

using namespace espalier::testing;

using Tokens = std::vector<uint64_t>;

/// Numbers of `width` bytes, little- or big-endian.
std::string bytes_of(const Tokens& tokens, size_t width, bool big = false) {
  std::string out;
  for (const uint64_t token : tokens) {
    for (size_t byte = 0; byte < width; ++byte) {
      const size_t place = big ? width - 1 - byte : byte;
      out += static_cast<char>(token >> (8 * place));
    }
  }
  return out;
}

void write(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

/// Ids as byte pair encodings have them: frequent ones are small (Zipf), below `vocabulary`.
Tokens text_like(size_t count, uint64_t vocabulary, uint64_t seed) {
  Tokens tokens(count);
  for (size_t i = 0; i < count; ++i) {
    const double u = static_cast<double>(mix(seed, i) >> 11) * 0x1p-53;
    tokens[i] = std::min(static_cast<uint64_t>(std::pow(static_cast<double>(vocabulary), u)) - 1,
                         vocabulary - 1);
  }
  return tokens;
}

Tokens uniform_tokens(size_t count, uint64_t vocabulary, uint64_t seed) {
  Tokens tokens(count);
  for (size_t i = 0; i < count; ++i) {
    tokens[i] = mix(seed, i) % vocabulary;
  }
  return tokens;
}

Tokens ascending(size_t count, uint64_t step = 1) {
  Tokens tokens(count);
  for (size_t i = 0; i < count; ++i) {
    tokens[i] = i * step;
  }
  return tokens;
}

class TokenFormat : public ::testing::Test {
 protected:
  /// The error of a file, or "" and the tokens that are read.
  std::string error(const std::string& content, const std::string& type = "auto",
                    Tokens* read = nullptr) {
    write(dir_ / "t.bin", content);
    return failure_of([&] {
      const auto data = TokenDataset::open({.kind = "tokens",
                                            .train = {(dir_ / "t.bin").string()},
                                            .validation_fraction = 0,
                                            .token_type = type},
                                           Split::train, {.context = 1});
      if (read != nullptr) {
        std::vector<int32_t> out(static_cast<size_t>(data.size()));
        data.read(0, out);
        read->assign(out.begin(), out.end());
      }
    });
  }
  TempDir dir_;
};

TEST_F(TokenFormat, NumbersOfOtherTypesAreRefusedByName) {
  for (const size_t count : {100U, 5000U, 20'000U}) {
    for (const uint64_t vocabulary : {64U, 300U, 32'000U, 50'257U, 128'000U, 262'144U}) {
      const std::string what = fmt::format("{} of {}", count, vocabulary);
      const bool large = vocabulary > 65536;  // 100 tokens of these prove little
      for (const Tokens& tokens :
           {text_like(count, vocabulary, 1), uniform_tokens(count, vocabulary, 2)}) {
        if (large && count < 5000) {
          continue;
        }
        EXPECT_THAT(error(bytes_of(tokens, 4)), HasSubstr("data.token_type = \"uint32\"")) << what;
        EXPECT_THAT(error(bytes_of(tokens, 8)), HasSubstr("int64")) << what;
        EXPECT_THAT(error(bytes_of(tokens, 4, true)), HasSubstr("big-endian")) << what;
        EXPECT_THAT(error(bytes_of(tokens, 8), "uint32"), HasSubstr("int64")) << what;
        // The named key makes int32 readable, and right.
        Tokens read;
        EXPECT_EQ(error(bytes_of(tokens, 4), "uint32", &read), "") << what;
        EXPECT_EQ(read, tokens) << what;
      }
    }
    if (count >= 5000) {
      for (const uint64_t vocabulary : {8000U, 32'000U, 50'257U}) {
        EXPECT_THAT(error(bytes_of(text_like(count, vocabulary, 3), 2, true)),
                    HasSubstr("big-endian uint16"))
            << count << " " << vocabulary;
      }
    }
    EXPECT_THAT(error(bytes_of(uniform_tokens(count, 200, 4), 2, true)),
                HasSubstr("big-endian uint16"));
    std::string floats;
    for (const uint64_t token : uniform_tokens(count, 50'257, 5)) {
      const auto number = static_cast<float>(token);
      floats.append(reinterpret_cast<const char*>(&number), sizeof(number));
    }
    EXPECT_NE(error(floats), "");
  }
}

/// Files that programs write: texts by several vocabularies, uniform numbers, runs of zeros and of
/// one token, sequences, tiny files.
TEST_F(TokenFormat, NoFileOfUint16IsRefused) {
  std::vector<Tokens> files;
  for (const uint64_t vocabulary :
       {2U, 3U, 10U, 65U, 256U, 300U, 1000U, 8000U, 32'000U, 50'257U, 65'536U}) {
    for (uint64_t seed = 0; seed < 12; ++seed) {
      const size_t count = size_t{1} << (2 + seed);
      files.push_back(text_like(count * 16, vocabulary, seed));
      files.push_back(uniform_tokens(count * 16, vocabulary, seed));
    }
    Tokens padded = text_like(60'000, vocabulary, 7);
    std::fill(padded.begin() + 20'000, padded.begin() + 50'000, 0);  // padding
    files.push_back(padded);
    Tokens separated = text_like(60'000, vocabulary, 8);
    for (size_t i = 0; i < separated.size(); i += 3) {
      separated[i] = 0;
    }
    files.push_back(separated);
  }
  files.push_back(Tokens(1000, 0));
  files.push_back(Tokens(1000, 65535));
  files.push_back(Tokens(1000, 256));
  files.push_back(ascending(20'000));
  files.push_back(ascending(65'536));
  files.push_back(ascending(200, 300));
  files.push_back({1, 0, 2, 0, 3, 0, 4, 0});  // too few to prove anything
  for (size_t i = 0; i < files.size(); ++i) {
    Tokens read;
    EXPECT_EQ(error(bytes_of(files[i], 2), "auto", &read), "") << i << ": " << files[i].size();
    EXPECT_EQ(read, files[i]) << i;
  }
}

TEST_F(TokenFormat, NoFileOfUint32IsRefused) {
  std::vector<Tokens> files{Tokens(1000, 0), ascending(20'000), Tokens(1000, 70'000)};
  for (const uint64_t vocabulary : {2U, 65U, 300U, 50'257U, 128'000U, 262'144U}) {
    for (uint64_t seed = 0; seed < 12; ++seed) {
      files.push_back(text_like(size_t{64} << seed, vocabulary, seed));
      files.push_back(uniform_tokens(size_t{64} << seed, vocabulary, seed));
    }
  }
  for (const Tokens& tokens : files) {
    Tokens read;
    EXPECT_EQ(error(bytes_of(tokens, 4), "uint32", &read), "");
    EXPECT_EQ(read, tokens);
  }
}

/// Where the content looks like another type, the note beside the file decides.
TEST_F(TokenFormat, TheNoteDecides) {
  Tokens pairs;  // a token, and 0
  for (size_t i = 0; i < 2000; ++i) {
    pairs.push_back(i % 2 == 0 ? i : 0);
  }
  Tokens read;
  for (const std::string type : {"auto", "uint16"}) {
    std::filesystem::remove(dir_ / "t.bin.json");
    EXPECT_THAT(error(bytes_of(pairs, 2), type), HasSubstr("{\"token_type\": \"uint16\"}"));
    write(dir_ / "t.bin.json", R"({"token_type": "uint16", "vocabulary": 5000})");
    EXPECT_EQ(error(bytes_of(pairs, 2), type, &read), "");
    EXPECT_EQ(read, pairs);
  }
  EXPECT_EQ(noted_vocabulary(std::vector<std::string>{(dir_ / "t.bin").string()}), 5000);
  write(dir_ / "t.bin.json", R"({"token_type": "uint32"})");
  EXPECT_EQ(error(bytes_of(pairs, 4), "auto", &read), "");
  EXPECT_EQ(read, pairs);
}

/// Megatron's index names the type.
TEST_F(TokenFormat, MegatronsIndexDecides) {
  const auto index = [&](char code) {
    write(dir_ / "t.idx",
          std::string("MMIDIDX\0\0", 9) + bytes_of({1}, 8) + code + bytes_of({1, 2}, 8));
  };
  const Tokens tokens = uniform_tokens(400, 3, 1);  // too few kinds for the content to tell
  Tokens read;
  index(4);  // int32
  EXPECT_EQ(error(bytes_of(tokens, 4), "auto", &read), "");
  EXPECT_EQ(read, tokens);
  EXPECT_THAT(error(bytes_of(tokens, 4), "uint16"), AllOf(HasSubstr("int32"), HasSubstr("t.idx")));
  index(8);  // uint16
  EXPECT_EQ(error(bytes_of(tokens, 2), "auto", &read), "");
  EXPECT_EQ(read, tokens);
  for (const auto& [code, name] : std::vector<std::pair<char, std::string>>{
           {1, "uint8"}, {5, "int64"}, {6, "float64"}, {99, "unknown type"}}) {
    index(code);
    EXPECT_THAT(error(bytes_of(tokens, 4)), HasSubstr(name));
  }
  write(dir_ / "t.idx", "not Megatron's");
  EXPECT_EQ(error(bytes_of(tokens, 2), "auto", &read), "");
}

TEST_F(TokenFormat, OtherFormatsAreRefused) {
  for (const std::string type : {"auto", "uint16", "uint32"}) {
    EXPECT_THAT(error("\x93NUMPY" + std::string(122, ' ') + bytes_of(ascending(1000), 2), type),
                HasSubstr("NumPy"));
    EXPECT_THAT(error("\x89HDF\r\n\x1a\n" + std::string(400, 'x'), type), HasSubstr("HDF5"));
    EXPECT_THAT(error("PAR1" + std::string(400, 'x') + "PAR1", type), HasSubstr("Parquet"));
  }
  write(dir_ / "t.npy", "\x93NUMPY" + std::string(122, ' '));
  EXPECT_THAT(
      failure_of([&] {
        TokenDataset::open(
            {.kind = "tokens", .train = {(dir_ / "t.npy").string()}, .validation_fraction = 0},
            Split::train, {.context = 1});
      }),
      HasSubstr("NumPy"));
}

}  // namespace
}  // namespace espalier::io::token_format_test
