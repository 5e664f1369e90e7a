// The real program on text: samples, token files, and listings of a run's requirements.
#include <cctype>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <regex>

#include "io/tokenizer/tokenizer.h"
#include "tests/io/tokenizer_examples.h"
#include "tests/support/program.h"

namespace espalier::cli_text_test {
namespace {

using Json = nlohmann::json;

using CliText = ProgramTest;

TEST_F(CliText, SampleIsAFunctionOfTheSeed) {
  here.ok("train c.toml");
  const std::string sample =
      "sample " + kLast + " --prompt 'a tree' --tokens 80 ";  // past the context
  const Ran ran = here.ok(sample + "--seed 5");
  EXPECT_TRUE(ran.out.starts_with("a tree"));
  EXPECT_EQ(ran.out.size(), 6U + 80U + 1U);  // prompt, one byte a token, line end
  EXPECT_EQ(here.run(sample + "--seed 5").out, ran.out);
  EXPECT_NE(here.run(sample + "--seed 6").out, ran.out);
  const std::string greedy = here.run(sample + "--temperature 0").out;
  EXPECT_EQ(here.run(sample + "--temperature 0 --seed 9").out, greedy);
  EXPECT_EQ(here.run(sample + "--top-k 1 --seed 9").out, greedy);
  EXPECT_EQ(here.run(sample + "--temperature 0.00001 --seed 9").out, greedy);
  EXPECT_EQ(here.run("sample " + kLast + " --prompt 'a tree' --tokens 0").out, "a tree\n");
  here.fails("sample " + kLast + " --prompt ''", 2, "--prompt");
  here.fails("sample " + kLast + " --prompt a --temperature -1", 2, "temperature");
}

TEST_F(CliText, SampleWritesSeveralTextsAsEachAlone) {
  here.ok("train c.toml");
  const std::string sample = "sample " + kLast + " --tokens 40 --seed 3 ";
  const std::string a = here.run(sample + "--prompt 'a tree'").out;
  const std::string b = here.run(sample + "--prompt 'The'").out;
  here.write("prompts.txt", "a tree\nThe\n");
  const Ran both = here.ok(sample + "--prompts prompts.txt");
  EXPECT_EQ(both.out, "=== 1 ===\n" + a + "=== 2 ===\n" + b);
  EXPECT_THAT(both.err, HasSubstr("tokens/s"));
  const Json json =
      Json::parse(here.run(sample + "--prompt 'a tree' --prompt 'a tree' --json").out);
  ASSERT_EQ(json["texts"].size(), 2U);
  EXPECT_EQ(json["texts"][0]["tokens"].size(), 40U);
  EXPECT_EQ(json["texts"][0]["finish"], "length");
  EXPECT_NE(json["texts"][0]["tokens"], json["texts"][1]["tokens"]);  // each its own numbers
}

/// A run of tokens of bytes is one text: an invalid byte changes that of the bytes before it.
TEST_F(CliText, SampleWritesBytesOnceTheirTextIsKnown) {
  here.ok("train c.toml");
  io::TokenizerJson vocabulary{{"<unk>", 0}, {"a", 1}, {"b", 2}};
  for (const char* byte : {"27", "2F", "C3", "A4", "E2", "82", "AC", "BF", "FF", "0A", "41"}) {
    const int id = static_cast<int>(vocabulary.size());
    vocabulary[fmt::format("<0x{}>", byte)] = id;
  }
  const io::TokenizerJson json{
      {"version", "1.0"},
      {"added_tokens", io::TokenizerJson::array()},
      {"normalizer", nullptr},
      {"pre_tokenizer", nullptr},
      {"post_processor", nullptr},
      {"decoder",
       {{"type", "Sequence"}, {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"byte_fallback", true},
        {"fuse_unk", true},
        {"vocab", vocabulary},
        {"merges", io::TokenizerJson::array()}}}};
  here.write("tokenizer.json", json.dump());
  const auto tokenizer = io::Tokenizer::from_text(json.dump());
  for (int seed = 1; seed <= 8; ++seed) {
    const std::string sample = fmt::format(
        "sample {} --tokenizer tokenizer.json --prompt ab --tokens 40 --temperature 9 "
        "--seed {} ",
        kLast, seed);
    const Json text = Json::parse(here.run(sample + "--json").out)["texts"][0];
    std::vector<int32_t> tokens{1, 2};
    for (const Json& token : text["tokens"]) {
      tokens.push_back(token);
    }
    const std::string want = tokenizer.decode(tokens);
    EXPECT_EQ("ab" + text["text"].get<std::string>(), want);
    EXPECT_EQ(here.run(sample).out, want + "\n");
  }
}

TEST_F(CliText, SampleStopsBeforeAText) {
  here.ok("train c.toml");
  const std::string sample = "sample " + kLast + " --prompt 'a tree' --tokens 60 --temperature 0 ";
  const std::string whole = here.run(sample).out;
  size_t at = 20;
  while (std::isalpha(static_cast<unsigned char>(whole.at(at))) == 0) {
    ++at;
  }
  const std::string stop = whole.substr(at, 1);
  const size_t place = whole.find(stop, 6);
  EXPECT_EQ(here.run(sample + "--stop '" + stop + "'").out, whole.substr(0, place) + "\n");
  here.fails("sample " + kLast + " --prompt '" + std::string(500, 'a') + "'", 1,
             "more than the context");
}

TEST_F(CliText, PerplexityOfATextUsesSlidingWindows) {
  here.ok("train c.toml");
  const std::string eval = "eval " + kLast + " --data text.txt ";
  const Json apart = Json::parse(here.run(eval + "--json").out);
  const Json sliding = Json::parse(here.run(eval + "--stride 5 --json").out);
  const auto size = static_cast<int64_t>(here.read("text.txt").size());
  EXPECT_EQ(sliding["predictions"], size - 1);
  EXPECT_LT(apart["predictions"], size - 1);  // not the first token of a window
  EXPECT_NEAR(std::exp(sliding["loss"].get<double>()), sliding["perplexity"].get<double>(), 1e-9);
  here.fails(eval + "--stride 100000", 1, "--stride 100000 is larger than the context");
  here.fails("eval " + kLast + " --stride 5", 2, "--data");
}

TEST_F(CliText, SampleOfCharactersStaysInTheirVocabulary) {
  here.ok("train c.toml --set data.kind=chars");
  const Ran ran = here.ok("sample " + kLast + " --prompt tree --tokens 200 --temperature 5");
  const std::string known = here.read("text.txt");
  for (const char c : ran.out) {
    EXPECT_TRUE(known.find(c) != known.npos) << "byte " << static_cast<int>(c);
  }
  here.fails("sample " + kLast + " --prompt 'TREE'", 1, "'T'");
}

TEST_F(CliText, TokenizedBytesTrainLikeBytes) {
  here.ok("train c.toml");
  for (const std::string type : {"uint16", "uint32"}) {
    EXPECT_THAT(here.ok("data tokenize text.txt -o t.bin --dtype " + type).out,
                HasSubstr("vocabulary = 256"));
    const size_t width = type == "uint16" ? 2 : 4;
    EXPECT_EQ(here.read("t.bin").size(), width * here.read("text.txt").size());
    here.ok(
        "train c.toml --out tokens --resume none --set data.kind=tokens "
        "--set 'data.train=[\"t.bin\"]' --set model.vocabulary=256");  // token_type: by the note
    EXPECT_EQ(here.curve("tokens", "loss"), here.curve("run", "loss"));
  }
  // A run that failed before its first step leaves nothing that stops the next one.
  const std::string again =
      "train c.toml --out again --set data.kind=tokens --set 'data.train=[\"t.bin\"]' ";
  here.fails(again + "--set model.vocabulary=5", 1, "outside the vocabulary of 5");
  EXPECT_EQ(here.read("again/metrics.jsonl"), "");
  here.ok(again + "--steps 1 --set model.vocabulary=256");
  here.fails(again + "--set model.vocabulary=256", 1, "holds a run already");
  // A text is no token file.
  const Ran text =
      here.run("train c.toml --out text --set data.kind=tokens --set 'data.train=[\"text.txt\"]'");
  expect_error(text, 1, "text.txt is a text");
  EXPECT_THAT(text.err,
              HasSubstr("`espalier data tokenize text.txt --tokenizer TOKENIZER -o text.bin`"));
  EXPECT_FALSE(here.has("text/metrics.jsonl"));
  // Input and output tokens are numbers.
  const std::string file = "tokens/checkpoints/step-000020.h5";
  const Ran numbers = here.ok("sample " + file + " --prompt '97 32 116' --tokens 3");
  EXPECT_THAT(numbers.err, HasSubstr("wrote 3 at"));
  std::istringstream words(numbers.out);
  int count = 0;
  for (int token = 0; words >> token; ++count) {
    EXPECT_TRUE(token >= 0 && token < 256);
  }
  EXPECT_EQ(count, 6) << numbers.out;
  here.fails("sample " + file + " --prompt 'tree'", 2, "tree");
  here.fails("sample " + file + " --prompt '256'", 2, "255");
}

TEST_F(CliText, TokenizedCharactersComeWithTheirVocabulary) {
  here.write("abc.txt", "cabbage");
  here.ok("data tokenize abc.txt -o t.bin --kind chars");
  const std::string bytes = here.read("t.bin");
  const Json note = Json::parse(here.read("t.bin.json"));
  EXPECT_EQ(note["vocabulary"], 5);
  EXPECT_EQ(note["bytes"], "6162636567");  // a b c e g
  std::string expected;
  for (const char token : std::string("\2\0\1\1\0\4\3", 7)) {
    expected += token;
    expected += '\0';
  }
  EXPECT_EQ(bytes, expected);
  here.fails("data tokenize none.txt -o t.bin", 1, "none.txt");
  here.write("empty.txt", "");
  here.fails("data tokenize empty.txt -o t2.bin", 1, "empty");
  EXPECT_FALSE(here.has("t2.bin"));
}

TEST_F(CliText, ATokenizerMakesTokenFiles) {
  io::TokenizerJson json = io::byte_level_tokenizer();
  here.write("tokenizer.json", json.dump());
  here.write("a.txt", "low the");
  here.write("b.txt", "the\xff");
  const std::string tokenize = "data tokenize a.txt b.txt -o t.bin --tokenizer tokenizer.json";
  const Ran ran = here.ok(tokenize + " --dtype uint32 --document-separator '<|end|>'");
  EXPECT_THAT(ran.out, HasSubstr("vocabulary = 301"));
  EXPECT_THAT(ran.err, HasSubstr("wrote t.bin: 9 tokens, 36 B"));
  const std::string bytes = here.read("t.bin");
  std::vector<uint32_t> tokens(bytes.size() / 4);
  std::memcpy(tokens.data(), bytes.data(), bytes.size());
  EXPECT_EQ(tokens, (std::vector<uint32_t>{257, 262, 300, 't', 261, 0xef, 0xbf, 0xbd, 300}));
  const Json note = Json::parse(here.read("t.bin.json"));
  EXPECT_EQ(note["kind"], "tokenizer");
  EXPECT_EQ(note["tokens"], 9);
  EXPECT_EQ(note["document_separator"], 300);
  here.ok(tokenize);
  EXPECT_EQ(here.read("t.bin").size(), 2U * 7U);
  here.ok("data inspect t.bin --kind tokens --context 2 --validation-fraction 0");

  here.fails(tokenize + " --document-separator 301", 1, "vocabulary of 301");
  here.fails(tokenize + " --document-separator none2", 1, "none2 is no token");
  here.fails(tokenize + " --kind bytes", 2, "--kind");
  here.fails("data tokenize a.txt -o tokenizer.json --tokenizer tokenizer.json", 1,
             "tokenizer.json is the input");
  here.fails("data tokenize a.txt -o a.txt --tokenizer tokenizer.json", 1, "a.txt is the input");
  here.fails("data tokenize none.txt -o t2.bin --tokenizer tokenizer.json", 1, "none.txt");
  json["model"]["vocab"]["far"] = 65536;
  here.write("tokenizer.json", json.dump());
  here.fails(tokenize + " --dtype uint16", 1, "leave out --dtype");
  here.ok(tokenize);
  EXPECT_EQ(here.read("t.bin").size(), 4U * 7U);
  here.ok("data inspect t.bin --kind tokens --context 2 --validation-fraction 0");
  json["decoder"]["type"] = "CTC";
  here.write("tokenizer.json", json.dump());
  here.fails(tokenize, 1, "tokenizer.json: decoder.type \"CTC\" is not supported");
}

TEST_F(CliText, DataInspectShowsTheSplit) {
  const auto size = static_cast<int64_t>(here.read("text.txt").size());
  const Json found = here.ok("data inspect text.txt --kind chars --context 32 --json").json();
  EXPECT_EQ(found["train"]["tokens"].get<int64_t>() + found["validation"]["tokens"].get<int64_t>(),
            size);
  EXPECT_EQ(found["validation"]["tokens"], size / 10);
  EXPECT_EQ(found["vocabulary"],
            found["characters"].get<std::string>().size() - 3);  // \x0a is four
  here.ok("data inspect text.txt --validation-fraction 0");
  here.fails("data inspect text.txt --context 999999", 1, "model.context");
  here.fails("data", 2, "subcommand");
}

/// The prediction of --dry-run matches the run's measurement.
TEST_F(CliText, ListingPredictsTheRun) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    const std::string changes =
        " --set pruning.scope=layer --set model.dropout=0.1 --set train.dtype=" + dtype;
    const Json found = here.ok("train c.toml --dry-run --json" + changes).json();
    here.ok("train c.toml --resume none --out dense --steps 3" + changes);
    here.ok("train c.toml --resume none --out sparse" + changes);
    for (const auto& [run, column] : {std::pair{"dense", "dense"}, std::pair{"sparse", "pruned"}}) {
      const Json summary = here.summary(run);
      EXPECT_EQ(found["parameters"], summary["parameters"]);
      EXPECT_EQ(found[column]["model_state"], summary["model_state_bytes"]) << run << dtype;
      for (const char* kind : {"weight", "gradient", "master", "moment", "index", "activation"}) {
        EXPECT_EQ(found[column][kind], summary["memory"]["total"][kind]["bytes"]) << run << kind;
      }
    }
    EXPECT_EQ(found["kept_parameters"], here.summary("sparse")["kept_parameters"]);
  }
}

/// Data of kind "tokens" do not name their tokenizer: other token files than the teacher's are a
/// note.
TEST_F(CliText, ATeacherIsListedAndItsTokenFilesAreCompared) {
  here.ok("data tokenize text.txt -o a.bin --kind chars");
  here.shell("cp a.bin same.bin && cp a.bin b.bin && head -c 100 a.bin >>b.bin");
  const auto with = [](const std::string& data) {
    return fmt::format(" --set data.kind=tokens --set 'data.train=[\"{}\"]'", data);
  };
  here.ok("train c.toml --out teacher --steps 5" + with("a.bin"));
  const std::string train =
      "train c.toml --steps 3 --set train.teacher=teacher/checkpoints/step-000005.h5";
  const Ran listed = here.ok(train + " --dry-run --json" + with("same.bin"));
  EXPECT_THAT(here.ok(train + " --out same" + with("same.bin")).err,
              Not(HasSubstr("one tokenizer")));
  EXPECT_GT(listed.json()["parts"]["teacher"], 0);
  EXPECT_EQ(listed.json()["dense"]["weight"],
            here.summary("same")["memory"]["total"]["weight"]["bytes"]);
  EXPECT_THAT(here.ok(train + " --out other" + with("b.bin")).err,
              HasSubstr("make sure that one tokenizer made both"));
}

/// The number in "1,234 parameters" of a config's first lines, which name a published network; 0:
/// none.
int64_t stated_parameters(const std::filesystem::path& config) {
  std::ifstream in(config);
  std::string comment;
  for (std::string line; std::getline(in, line) && line.starts_with('#');) {
    comment += line.substr(1);
  }
  std::smatch found;
  if (!std::regex_search(comment, found, std::regex("([0-9][0-9,]*) parameters"))) {
    return 0;
  }
  std::string digits = found[1];
  std::erase(digits, ',');
  return std::stoll(digits);
}

std::vector<std::filesystem::path> configs() {
  std::vector<std::filesystem::path> found;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(ESPALIER_SOURCE_DIR "/configs")) {
    if (entry.path().extension() == ".toml") {
      found.push_back(entry.path());
    }
  }
  return found;
}

/// Every config of the project can be listed and sets no key in vain. Published networks have as
/// many parameters as their authors say, or torchvision's models; vision transformers without their
/// class token.
TEST_F(CliText, ConfigsOfTheProjectCanBeListed) {
  int count = 0;
  for (const std::filesystem::path& file : configs()) {
    const Json listed = here.ok("train '" + file.string() + "' --dry-run --json").json();
    EXPECT_FALSE(listed.contains("without_effect")) << file << listed["without_effect"];
    if (const int64_t stated = stated_parameters(file); stated > 0) {
      ++count;
      EXPECT_EQ(listed["parameters"].get<int64_t>(), stated) << file;
    }
  }
  EXPECT_GE(count, 14);
  const Ran stages = here.ok("train '" ESPALIER_SOURCE_DIR
                             "/configs/gpt2-124m.toml' --dry-run --set parallel.pipeline=2");
  EXPECT_THAT(stages.out, HasSubstr("over 2 ranks = 2 stages x 1 replica"));
  const Ran large =
      here.run("train '" ESPALIER_SOURCE_DIR "/configs/gpt3-13b.toml' --dry-run --json");
  EXPECT_NEAR(large.json()["parameters"].get<double>(), 12.9e9, 0.1e9);
  EXPECT_LT(large.json()["pruned"]["model_state_bytes_per_parameter"].get<double>(), 4.4);
  const Json found =
      here.run("train '" ESPALIER_SOURCE_DIR "/configs/gpt-100b.toml' --dry-run --json").json();
  EXPECT_NEAR(found["parameters"].get<double>(), 100e9, 0.5e9);
  EXPECT_LE(found["pruned"]["model_state_bytes_per_parameter"].get<double>(), 1.1);
  EXPECT_EQ(found["recompute"], "full");
  EXPECT_GT(found["pruned"]["activation"].get<double>(), 96.0 * 2048 * 9312 * 2);
  EXPECT_LT(found["process"].get<double>(), 139 * 0x1p30);
  double parts = 0;
  for (const auto& [part, bytes] : found["parts"].items()) {
    parts += bytes.get<double>();
  }
  EXPECT_EQ(parts, found["pruned"]["model_state"].get<double>());
}

/// Large configs state their ranks in a comment, "# Ranks: N as …". They begin pruned, and each
/// stage fits train.memory_budget.
TEST_F(CliText, LargeConfigsFitTheirRanks) {
  int count = 0;
  for (const std::filesystem::path& file : configs()) {
    std::ifstream in(file);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    std::smatch ranks;
    const std::string listing = "train '" + file.string() + "' --dry-run --json";
    if (!std::regex_search(text, ranks, std::regex("\n# Ranks: ([0-9]+) as"))) {
      EXPECT_LT(here.run(listing).json()["parameters"].get<double>(), 1e9) << file;
      continue;
    }
    ++count;
    const Json found = here.run(listing + " --ranks " + ranks[1].str()).json();
    EXPECT_EQ(found["fits"], true) << file << found["grid"];
    EXPECT_EQ(found["grid"]["ranks"], std::stoi(ranks[1])) << file;
    EXPECT_GT(found["grid"]["stages"].size(), 1U) << file;
    double kept = 0;
    double parameters = 0;
    for (const Json& stage : found["grid"]["stages"]) {
      EXPECT_LE(stage["process"], found["grid"]["process"]) << file;
      kept += stage["kept_parameters"].get<double>();
      parameters += stage["parameters"].get<double>();
    }
    // Tied embeddings are on two stages.
    EXPECT_GE(kept, found["kept_parameters"]) << file;
    EXPECT_LT(kept, 0.25 * parameters) << file;
    EXPECT_THAT(text, HasSubstr("method = \"random\"")) << file;
    EXPECT_THAT(text, Not(HasSubstr("at_step"))) << file;
  }
  EXPECT_GE(count, 4);
}

TEST_F(CliText, ListingsOfGridsNameWhatIsWrong) {
  const std::string listing =
      "train '" ESPALIER_SOURCE_DIR "/configs/gpt2-124m.toml' --dry-run --set parallel.pipeline=";
  for (const auto& [options, message] :
       {std::pair{"4 --ranks 6", "parallel.pipeline = 4 does not divide 6 ranks"},
        std::pair{"40", "40 stages, and the network has only 14 layers"},
        std::pair{"2 --set train.memory_budget=1GiB", "is too small"}}) {
    EXPECT_THAT(here.ok(listing + options).out, HasSubstr(message));
  }
}

}  // namespace
}  // namespace espalier::cli_text_test
