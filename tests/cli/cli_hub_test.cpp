// The real program with directories of Hugging Face models: a tiny one goes in, is pruned and
// trained, and comes out, with its tokenizer.
#include <gmock/gmock.h>

#include "io/checkpoint/checkpoint.h"
#include "tests/hub/example_models.h"
#include "tests/support/program.h"
#include "tests/support/sentencepiece.h"

namespace espalier::cli_hub_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

/// Each byte of the text is a token.
std::string byte_tokenizer() {
  nlohmann::ordered_json vocabulary;
  int next = 0;
  for (char c = 'a'; c <= 'z'; ++c) {
    vocabulary[std::string(1, c)] = next++;
  }
  vocabulary["\u0120"] = next++;  // a blank
  vocabulary["\u010a"] = next++;  // the end of a line
  return nlohmann::ordered_json{
      {"version", "1.0"},
      {"added_tokens", nlohmann::json::array()},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "ByteLevel"},
        {"add_prefix_space", false},
        {"trim_offsets", true},
        {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}}}
      .dump();
}

void write_hub_model(const Workplace& here, const std::string& architecture) {
  const std::string config = hub::example_model(architecture).config;
  hub::write_model(here / "hub", config, hub::make_tensors(config, io::SafetensorsType::bf16));
  here.write("hub/tokenizer.json", byte_tokenizer());
  std::string text;
  for (int i = 0; i < 200; ++i) {
    text += "the quick brown fox jumps over a lazy dog\n";
  }
  here.write("words.txt", text);
}

class HubModel : public ::testing::TestWithParam<std::string> {};

TEST_P(HubModel, IsPrunedTrainedAndExported) {
  const Workplace here;
  write_hub_model(here, GetParam());
  const Ran imported = here.run("import hub -o dense.h5 --context 16");
  expect_code(imported, 0);
  EXPECT_THAT(imported.err, HasSubstr("wrote dense.h5: " + GetParam()));
  expect_code(here.run("data tokenize words.txt --tokenizer dense.h5 -o train.bin"), 0);
  expect_code(here.run("inspect dense.h5"), 0);
  expect_code(here.run("prune dense.h5 -o pruned.h5 --method wanda --sparsity 0.5 --calibration "
                       "train.bin --samples 8"),
              0);
  here.write("finetune.toml",
             "[data]\nkind = \"tokens\"\ntrain = [\"train.bin\"]\n[train]\nsteps = 3\n"
             "global_batch = 2\neval_batches = 1\n[run]\nout = \"tuned\"\n");
  expect_code(here.run("train finetune.toml --init pruned.h5"), 0);
  const std::string last = "tuned/checkpoints/step-000003.h5";
  expect_code(here.run("eval " + last), 0);
  expect_code(here.run("export " + last + " -o out/model"), 0);
  EXPECT_EQ(here.read("out/model/tokenizer.json"), byte_tokenizer());

  // The masks come back, also those of the checkpoint before the training.
  expect_code(here.run("import out/model -o again.h5 --zeros-are-pruned"), 0);
  const auto kept = [&](const std::string& file) {
    return here.run("inspect --json " + file).json()["kept_parameters"].get<int64_t>();
  };
  EXPECT_EQ(kept("again.h5"), kept("pruned.h5"));
  EXPECT_LT(kept("pruned.h5"), kept("dense.h5"));
}

INSTANTIATE_TEST_SUITE_P(All, HubModel, ::testing::Values("GPT2LMHeadModel", "Qwen2ForCausalLM"),
                         [](const auto& row) { return row.param; });

/// Words with a mark in place of the blank before them, as Llama 2 has.
std::string metaspace_tokenizer() {
  nlohmann::ordered_json vocabulary{{"<unk>", 0}, {"\u2581", 1}};
  nlohmann::json merges = nlohmann::json::array();
  int next = 2;
  for (char c = 'a'; c <= 'h'; ++c) {
    vocabulary[std::string(1, c)] = next++;
  }
  for (char c = 'a'; c <= 'h'; ++c) {
    vocabulary[std::string("\u2581") + c] = next++;
    merges.push_back(std::string("\u2581 ") + c);
  }
  const nlohmann::ordered_json blank{
      {"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}};
  return nlohmann::ordered_json{
      {"version", "1.0"},
      {"added_tokens", nlohmann::json::array()},
      {"normalizer",
       {{"type", "Sequence"},
        {"normalizers",
         {{{"type", "Prepend"}, {"prepend", "\u2581"}},
          {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}}},
      {"pre_tokenizer", nullptr},
      {"post_processor", nullptr},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders",
         {blank,
          {{"type", "Fuse"}},
          {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
      {"model",
       {{"type", "BPE"}, {"unk_token", "<unk>"}, {"vocab", vocabulary}, {"merges", merges}}}}
      .dump();
}

/// The first word keeps its blank, which decoders remove at the start of a text. The embedding has
/// rows behind the last token: they are never drawn.
TEST(CliHub, SampledWordsKeepTheirBlanks) {
  const Workplace here;
  write_hub_model(here, "LlamaForCausalLM");
  here.write("hub/tokenizer.json", metaspace_tokenizer());
  expect_code(here.run("import hub -o dense.h5"), 0);
  int blanks_first = 0;
  for (int seed = 0; seed < 6; ++seed) {
    const Ran ran = here.run(fmt::format(
        "sample dense.h5 --json --prompt 'a b' --tokens 12 --temperature 9 --seed {}", seed));
    expect_code(ran, 0);
    const nlohmann::json text = ran.json()["texts"][0];
    std::string wanted;
    for (const int token : text["tokens"]) {
      ASSERT_LT(token, 18);
      wanted += token == 0   ? "<unk>"
                : token == 1 ? " "
                : token < 10 ? std::string(1, static_cast<char>('a' + token - 2))
                             : std::string(" ") + static_cast<char>('a' + token - 10);
    }
    EXPECT_EQ(text["text"], wanted);
    blanks_first += static_cast<int>(wanted.starts_with(' '));
  }
  EXPECT_GT(blanks_first, 0);
}

/// Texts, which the checkpoint's tokenizer encodes, and their token file give the same numbers.
TEST(CliHub, TextsAreEncodedOrRefused) {
  const Workplace here;
  write_hub_model(here, "LlamaForCausalLM");
  expect_code(here.run("import hub -o dense.h5 --context 16"), 0);
  expect_code(here.run("import hub -o without.h5 --context 16 --no-tokenizer"), 0);
  expect_code(here.run("data tokenize words.txt --tokenizer dense.h5 -o words.bin"), 0);
  const std::string how = " --method wanda --sparsity 0.5 --samples 8 --calibration words.";
  for (const std::string kind : {"txt", "bin"}) {
    expect_code(here.run(fmt::format("prune dense.h5 -o {0}.h5{1}{0}", kind, how)), 0);
    expect_code(here.run(fmt::format("export {0}.h5 -o out-{0}", kind)), 0);
  }
  EXPECT_EQ(here.read("out-txt/model.safetensors"), here.read("out-bin/model.safetensors"));
  const auto loss = [&](const std::string& data) {
    return here.run("eval dense.h5 --json --data " + data).json()["loss"];
  };
  EXPECT_EQ(loss("words.txt"), loss("words.bin"));

  const std::string refused = "words.txt is a text";
  expect_error(here.run("prune without.h5 -o x.h5" + how + "txt"), 1, refused);
  expect_error(here.run("eval without.h5 --data words.txt"), 1, refused);
  expect_code(here.run("eval without.h5 --data words.txt --tokenizer dense.h5"), 0);
  expect_error(here.run("eval dense.h5 --set 'data.train=[\"words.txt\"]'"), 1, refused);
  expect_error(here.run("eval dense.h5"), 1, "dense.h5 names no data to evaluate: add --data FILE");
  expect_error(here.run("data inspect words.txt --kind tokens"), 1, refused);
  here.write("text.toml",
             "[data]\nkind = \"tokens\"\ntrain = [\"words.txt\"]\n[train]\nsteps = 3\n");
  expect_error(here.run("train text.toml --init dense.h5"), 1, refused);
  EXPECT_FALSE(fs::exists(here / "x.h5") || fs::exists(here / "runs/run/config.toml"));
}

/// As transformers' generate(): at the ids of generation_config.json or config.json, at no others.
/// Without such ids every special token ends a text.
TEST(CliHub, TextsEndAtTheTokensThatTheModelNames) {
  const Workplace here;
  write_hub_model(here, "LlamaForCausalLM");
  auto tokenizer = nlohmann::ordered_json::parse(byte_tokenizer());
  tokenizer["added_tokens"] = {{{"id", 28},
                                {"content", "<x>"},
                                {"single_word", false},
                                {"lstrip", false},
                                {"rstrip", false},
                                {"normalized", false},
                                {"special", true}}};
  here.write("hub/tokenizer.json", tokenizer.dump());
  const auto sampled = [&](const std::string& generation) {
    if (!generation.empty()) {
      here.write("hub/generation_config.json", R"({"eos_token_id": )" + generation + "}");
    }
    expect_code(here.run("import hub -o dense.h5"), 0);
    expect_code(here.run("prune dense.h5 -o pruned.h5 --method magnitude --sparsity 0"), 0);
    expect_code(here.run(fmt::format("export pruned.h5 -o 'out{}'", generation)), 0);
    const Ran ran =
        here.run("sample pruned.h5 --json --prompt the --tokens 300 --temperature 9 --seed 2");
    expect_code(ran, 0);
    return ran.json()["texts"][0];
  };
  constexpr int kSpecial = 28;
  const nlohmann::json special = sampled("");
  EXPECT_EQ(special["finish"], "special token");
  EXPECT_EQ(special["tokens"].back(), kSpecial);
  const nlohmann::json all = sampled("39");  // a row without a token: never drawn
  EXPECT_EQ(all["finish"], "length");
  const std::vector<int> tokens = all["tokens"];
  ASSERT_EQ(tokens.size(), 300U);
  const auto first_special = std::ranges::find(tokens, kSpecial);
  ASSERT_NE(first_special, tokens.end());
  const auto end = std::ranges::find_if(first_special, tokens.end(), [&](int token) {
    return std::find(tokens.begin(), first_special + 1, token) == first_special + 1;
  });
  ASSERT_NE(end, tokens.end());
  const std::vector<int> wanted(tokens.begin(), end + 1);
  const nlohmann::json ended = sampled(fmt::format("[39,{}]", *end));
  EXPECT_EQ(ended["finish"], "end token");
  EXPECT_EQ(ended["tokens"], wanted);
  EXPECT_EQ(here.read(fmt::format("out[39,{}]/generation_config.json", *end)),
            here.read("hub/generation_config.json"));
}

/// A network that was trained from the start has its settings in config.json, or is not exported.
TEST(CliHub, OnlyNetworksThatConfigJsonDescribesAreExported) {
  const auto trained = [](const Workplace& here, const std::string& family,
                          const std::string& change) {
    expect_code(here.run(fmt::format("train c.toml --set model.kind=decoder --set model.family={} "
                                     "--set train.steps=1 --set pruning.method=none --set model.{}",
                                     family, change)),
                0);
    return here.run("export run/checkpoints/last.h5 -o out");
  };
  for (const auto& [family, change, key, value] :
       std::vector<std::tuple<std::string, std::string, std::string, nlohmann::json>>{
           {"qwen2", "window=5", "sliding_window", 5},
           {"mistral", "window=6", "sliding_window", 6},
           {"llama", "kv_heads=1", "num_key_value_heads", 1},
           {"neox", "rotary_share=0.5", "rotary_pct", 0.5},
           {"opt", "mlp_width=40", "ffn_dim", 40}}) {
    const Workplace here;
    expect_code(trained(here, family, change), 0);
    const auto json = nlohmann::json::parse(here.read("out/config.json"));
    EXPECT_EQ(json[key], value) << family;
    EXPECT_TRUE(json.contains("eos_token_id") && json["eos_token_id"].is_null()) << family;
    expect_code(here.run("import out -o again.h5"), 0);
  }
  for (const auto& [family, change, message] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"llama", "window=5", "model.window: 5 and 0"},
           {"gemma", "window=5", "model.window: 5 and 0"},
           {"neox", "kv_heads=1", "model.kv_heads: 1 and 2"},
           {"opt", "head_width=8", "model.head_width: 8 and 16"},
           {"llama", "rotary_share=0.5", "model.rotary_share: 0.5 and 1"}}) {
    const Workplace here;
    expect_error(trained(here, family, change), 1, message);
    EXPECT_FALSE(fs::exists(here / "out"));
  }
}

TEST(CliHub, AKilledExportOrImportLeavesNothingThatLooksWhole) {
  const Workplace here;
  write_hub_model(here, "GPT2LMHeadModel");
  expect_code(here.run("import hub -o dense.h5 --context 16"), 0);
  const std::string disk =
      fs::canonical("/proc/self/exe").parent_path() / "libespalier_slow_disk.so";
  for (const auto& [command, target] :
       {std::pair<std::string, std::string>{"export dense.h5 -o out", "out"},
        {"import hub -o again.h5 --context 16", "again.h5"}}) {
    // Killed when its temporary name appears: the first fsync takes longer than this waits.
    const Ran killed = here.shell(fmt::format(
        "SLOW_DISK_SECONDS=30 LD_PRELOAD='{}' {} {} & pid=$!; n=0; until ls -d {}.tmp-* "
        ">/dev/null 2>&1; do sleep 0.02; n=$((n+1)); [ $n -lt 1000 ] || exit 3; done; sleep 0.2; "
        "kill -9 $pid; wait $pid",
        disk, ESPALIER_PROGRAM, command, target));
    expect_code(killed, 137);
    EXPECT_FALSE(fs::exists(here / target)) << target;
    expect_code(here.run(command), 0);
    EXPECT_TRUE(fs::exists(here / target)) << target;
    EXPECT_NE(here.shell(fmt::format("ls -d {}.tmp-*", target)).code, 0) << "remains of " << target;
  }
}

/// Pipeline and replicas of a run leave no trace in its export.
TEST(CliHub, RunsOfSeveralRanksAreExported) {
  const Workplace here;
  write_hub_model(here, "Qwen2ForCausalLM");
  expect_code(here.run("import hub -o dense.h5 --context 16"), 0);
  expect_code(here.run("data tokenize words.txt --tokenizer dense.h5 -o train.bin"), 0);
  expect_code(here.run("prune dense.h5 -o pruned.h5 --method magnitude --sparsity 0.5"), 0);
  here.write("c.toml",
             "[data]\nkind = \"tokens\"\ntrain = [\"train.bin\"]\n[train]\nsteps = 2\n"
             "global_batch = 4\nmicro_batch = 2\neval_batches = 1\n[run]\nthreads = 1\n");
  const auto train = [&](const std::string& launcher, const std::string& more) {
    expect_code(here.shell(fmt::format("{}{} train c.toml --init pruned.h5 {}", launcher,
                                       ESPALIER_PROGRAM, more)),
                0);
  };
  const std::string ranks = fmt::format("timeout 120 '{}/scripts/mpirun.sh' ", ESPALIER_SOURCE_DIR);
  train("", "--out one");
  train(ranks + "2 ", "--out stages --set parallel.pipeline=2");
  for (const char* run : {"one", "stages"}) {
    expect_code(here.run(fmt::format("export {0}/checkpoints/step-000002.h5 -o {0}-hub", run)), 0);
  }
  EXPECT_EQ(here.read("stages-hub/model.safetensors"), here.read("one-hub/model.safetensors"));
  EXPECT_EQ(here.read("stages-hub/config.json"), here.read("one-hub/config.json"));
  train(ranks + "2 ", "--out replicas --set parallel.zero=1");
  expect_code(here.run("export replicas/checkpoints/step-000002.h5 -o replicas-hub"), 0);
  expect_code(here.run("import replicas-hub -o again.h5 --zeros-are-pruned"), 0);
  const auto kept = [&](const std::string& file) {
    return here.run("inspect --json " + file).json()["kept_parameters"].get<int64_t>();
  };
  EXPECT_EQ(kept("again.h5"), kept("pruned.h5"));
}

TEST(CliHub, WrongUsage) {
  const Workplace here;
  write_hub_model(here, "GPT2LMHeadModel");
  expect_code(here.run("import hub -o dense.h5"), 0);
  expect_error(here.run("import hub -o x.h5 --config c.toml"), 1, "hub is not an ordinary file");
  expect_error(here.run("import a.h5 -o x.h5 --config c.toml --zeros-are-pruned"), 2,
               "--zeros-are-pruned");
  expect_error(here.run("import hub -o x.h5 --dtype int8"), 2, "--dtype");
  expect_error(here.run("import hub -o x.h5 --context 0"), 2, "--context");
  expect_error(here.run("import hub -o x.h5 --context 17"), 1, "--context 17 is more than the 16");
  expect_error(here.run("import hub -o hub"), 1, "hub is a folder; name a file");
  expect_error(here.run("import hub -o hub/config.json"), 1, "would be replaced");
  expect_error(here.run("import hub/model.safetensors -o hub/model.safetensors"), 1,
               "would be replaced");
  expect_error(here.run("import none -o x.h5 --config c.toml"), 1, "none");
  expect_error(here.run("import none -o x.h5"), 1, "none does not exist; name the directory");
  EXPECT_FALSE(fs::exists(here / "x.h5"));
  expect_error(here.run("export dense.h5 -o x.h5 --sparse"), 2, "--sparse");
  expect_error(here.run("export dense.h5 -o out --shard-size 5KG"), 1, "\"5KG\" is not a size");
  const Ran shards = here.run("export dense.h5 -o shards --shard-size 8KB");
  expect_code(shards, 0);
  EXPECT_THAT(shards.err, ContainsRegex("in [2-9] files,"));
  const Ran whole = here.run("export dense.h5 -o whole");
  expect_code(whole, 0);
  EXPECT_THAT(whole.err, HasSubstr("in 1 file,"));
  expect_error(here.run("export dense.h5 -o hub"), 1, "hub is not empty");
  expect_error(here.run("export none.h5 -o out"), 1, "none.h5");
  EXPECT_FALSE(fs::exists(here / "out"));
  here.write("none.json", "{}");
  expect_error(here.run("data tokenize words.txt --tokenizer none.json -o t.bin"), 1, "none.json");
  expect_code(here.run("import hub -o without.h5 --no-tokenizer"), 0);
  expect_error(here.run("data tokenize words.txt --tokenizer without.h5 -o t.bin"), 1,
               "without.h5 holds no tokenizer");
  EXPECT_FALSE(fs::exists(here / "t.bin"));
}

TEST(CliHub, ATokenizerModelOfSentencePieceTravels) {
  const Workplace here;
  write_hub_model(here, "LlamaForCausalLM");
  fs::remove(here / "hub/tokenizer.json");
  const std::vector<std::string> sentences(20, "the quick brown fox jumps over a lazy dog");
  const std::string options = "--model_type=bpe --character_coverage=1 --vocab_size=";
  const std::string model = train_sentencepiece(options + "40", sentences);
  ASSERT_NE(model.find('\0'), std::string::npos);
  const std::string tokenizer_config = R"({"add_bos_token": true, "add_eos_token": false})";
  here.write("hub/tokenizer.model", model);
  here.write("hub/tokenizer_config.json", tokenizer_config);
  expect_code(here.run("import hub -o dense.h5"), 0);
  expect_code(here.run("data tokenize words.txt --tokenizer dense.h5 -o train.bin"), 0);
  expect_code(here.run("data tokenize words.txt --tokenizer hub/tokenizer.model -o direct.bin"), 0);
  EXPECT_EQ(here.read("train.bin"), here.read("direct.bin"));
  EXPECT_GT(here.read("train.bin").size(), 2000U);
  expect_code(here.run("prune dense.h5 -o pruned.h5 --method magnitude --sparsity 0.5"), 0);
  const std::string sample = "sample pruned.h5 --prompt 'the quick' --tokens 3 --seed 1 --json";
  const Ran own = here.run(sample);
  const Ran named = here.run(sample + " --tokenizer hub/tokenizer.model");
  expect_code(own, 0);
  expect_code(named, 0);
  EXPECT_EQ(own.json()["texts"], named.json()["texts"]);
  expect_code(here.run("sample pruned.h5 --prompt the --tokens 3 --tokenizer dense.h5"), 0);
  expect_code(
      here.run("eval pruned.h5 --data words.txt --tokenizer hub/tokenizer.model --stride 8"), 0);
  expect_code(here.run("export pruned.h5 -o out"), 0);
  EXPECT_EQ(here.read("out/tokenizer.model"), model);
  EXPECT_EQ(here.read("out/tokenizer_config.json"), tokenizer_config);
  EXPECT_FALSE(fs::exists(here / "out/tokenizer.json"));

  // Damaged, or of another model: nothing is written.
  here.write("cut.model", model.substr(0, model.size() / 2));
  expect_error(here.run("data tokenize words.txt --tokenizer cut.model -o t.bin"), 1,
               "cut.model: the SentencePiece model is cut off or damaged; download it again");
  EXPECT_FALSE(fs::exists(here / "t.bin"));
  here.write("hub/tokenizer.model", model.substr(0, model.size() / 2));
  expect_error(here.run("import hub -o x.h5"), 1, "--no-tokenizer imports the model without it");
  here.write("hub/tokenizer.model", train_sentencepiece(options + "45", sentences));
  expect_error(here.run("import hub -o x.h5"), 1,
               "has tokens up to 44, but the embedding of the model has 40 rows");
  EXPECT_FALSE(fs::exists(here / "x.h5"));
  here.write("hub/tokenizer.model", model);
  here.write("hub/tokenizer_config.json",
             R"({"added_tokens_decoder": {"1": {"content": "<s>"}, "40": {"content": "<x>"}}})");
  const Ran added = here.run("import hub -o x.h5");
  expect_code(added, 0);
  EXPECT_THAT(added.err, HasSubstr("add a token: \"<x>\", which it does not add"));
  expect_code(here.run("import hub -o without.h5 --no-tokenizer"), 0);
  expect_error(here.run("data tokenize words.txt --tokenizer without.h5 -o t.bin"), 1,
               "without.h5 holds no tokenizer");
  // A tokenizer.json beside it comes first.
  here.write("hub/tokenizer.json", byte_tokenizer());
  expect_code(here.run("import hub -o both.h5"), 0);
  expect_code(here.run("export both.h5 -o both"), 0);
  EXPECT_EQ(here.read("both/tokenizer.json"), byte_tokenizer());
  EXPECT_FALSE(fs::exists(here / "both/tokenizer.model"));
}

TEST(CliHub, ANetworkWithoutArchitectureIsExportedAsArrays) {
  const Workplace here;
  expect_code(here.run("train c.toml --set model.norm=rmsnorm --set train.steps=1 --set "
                       "pruning.method=none --set train.checkpoint_every=0"),
              0);
  const std::string last = "run/checkpoints/step-000001.h5";
  expect_error(here.run("export " + last + " -o out"), 1,
               "no Hugging Face architecture computes this network");
  EXPECT_FALSE(fs::exists(here / "out"));
  expect_code(here.run("export " + last + " -o plain.h5"), 0);
}

}  // namespace
}  // namespace espalier::cli_hub_test
