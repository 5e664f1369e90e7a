// The real program with directories of Hugging Face models: a tiny one goes in, is pruned and
// trained, and comes out, with its tokenizer.
#include "tests/hub/example_models.h"
#include "tests/support/program.h"
#include "tests/support/sentencepiece.h"

namespace espalier::cli_hub_test {
namespace {

using ::testing::ContainsRegex;
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
  return hub::byte_level_tokenizer(vocabulary.dump());
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

class HubModel : public ProgramTestWithParam {};

TEST_P(HubModel, IsPrunedTrainedAndExported) {
  write_hub_model(here, GetParam());
  EXPECT_THAT(here.ok("import hub -o dense.h5 --context 16").err,
              HasSubstr("wrote dense.h5: " + GetParam()));
  here.ok("data tokenize words.txt --tokenizer dense.h5 -o train.bin");
  here.ok("inspect dense.h5");
  here.ok(
      "prune dense.h5 -o pruned.h5 --method wanda --sparsity 0.5 --calibration "
      "train.bin --samples 8");
  here.write("finetune.toml",
             "[data]\nkind = \"tokens\"\ntrain = [\"train.bin\"]\n[train]\nsteps = 3\n"
             "global_batch = 2\neval_batches = 1\n[run]\nout = \"tuned\"\n");
  here.ok("train finetune.toml --init pruned.h5");
  const std::string last = "tuned/checkpoints/step-000003.h5";
  here.ok("eval " + last);
  here.ok("export " + last + " -o out/model");
  EXPECT_EQ(here.read("out/model/tokenizer.json"), byte_tokenizer());

  // The masks come back, also those of the checkpoint before the training.
  here.ok("import out/model -o again.h5 --zeros-are-pruned");
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
  auto json = nlohmann::ordered_json::parse(R"({"version": "1.0", "added_tokens": [],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
    "pre_tokenizer": null, "post_processor": null,
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "unk_token": "<unk>"}})");
  json["model"]["vocab"] = vocabulary;
  json["model"]["merges"] = merges;
  return json.dump();
}

using CliHub = ProgramTest;

/// The first word keeps its blank, which decoders remove at the start of a text. The embedding has
/// rows behind the last token: they are never drawn.
TEST_F(CliHub, SampledWordsKeepTheirBlanks) {
  write_hub_model(here, "LlamaForCausalLM");
  here.write("hub/tokenizer.json", metaspace_tokenizer());
  here.ok("import hub -o dense.h5");
  int blanks_first = 0;
  for (int seed = 0; seed < 6; ++seed) {
    const nlohmann::json text =
        here.ok(fmt::format(
                    "sample dense.h5 --json --prompt 'a b' --tokens 12 --temperature 9 --seed {}",
                    seed))
            .json()["texts"][0];
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
TEST_F(CliHub, TextsAreEncodedOrRefused) {
  write_hub_model(here, "LlamaForCausalLM");
  here.ok("import hub -o dense.h5 --context 16");
  here.ok("import hub -o without.h5 --context 16 --no-tokenizer");
  here.ok("data tokenize words.txt --tokenizer dense.h5 -o words.bin");
  const std::string how = " --method wanda --sparsity 0.5 --samples 8 --calibration words.";
  for (const std::string kind : {"txt", "bin"}) {
    here.ok(fmt::format("prune dense.h5 -o {0}.h5{1}{0}", kind, how));
    here.ok(fmt::format("export {0}.h5 -o out-{0}", kind));
  }
  EXPECT_EQ(here.read("out-txt/model.safetensors"), here.read("out-bin/model.safetensors"));
  const auto loss = [&](const std::string& data) {
    return here.run("eval dense.h5 --json --data " + data).json()["loss"];
  };
  EXPECT_EQ(loss("words.txt"), loss("words.bin"));

  const std::string refused = "words.txt is a text";
  here.fails("prune without.h5 -o x.h5" + how + "txt", 1, refused);
  here.fails("eval without.h5 --data words.txt", 1, refused);
  here.ok("eval without.h5 --data words.txt --tokenizer dense.h5");
  here.fails("eval dense.h5 --set 'data.train=[\"words.txt\"]'", 1, refused);
  here.fails("eval dense.h5", 1, "dense.h5 names no data to evaluate: add --data FILE");
  here.fails("data inspect words.txt --kind tokens", 1, refused);
  here.write("text.toml",
             "[data]\nkind = \"tokens\"\ntrain = [\"words.txt\"]\n[train]\nsteps = 3\n");
  here.fails("train text.toml --init dense.h5", 1, refused);
  EXPECT_FALSE(here.has("x.h5") || here.has("runs/run/config.toml"));
}

/// As transformers' generate(): at the ids of generation_config.json or config.json, at no others.
/// Without such ids every special token ends a text.
TEST_F(CliHub, TextsEndAtTheTokensThatTheModelNames) {
  write_hub_model(here, "LlamaForCausalLM");
  auto tokenizer = nlohmann::ordered_json::parse(byte_tokenizer());
  tokenizer["added_tokens"] = nlohmann::json::parse(hub::special_token(28));
  here.write("hub/tokenizer.json", tokenizer.dump());
  const auto sampled = [&](const std::string& generation) {
    if (!generation.empty()) {
      here.write("hub/generation_config.json", R"({"eos_token_id": )" + generation + "}");
    }
    here.ok("import hub -o dense.h5");
    here.ok("prune dense.h5 -o pruned.h5 --method magnitude --sparsity 0");
    here.ok(fmt::format("export pruned.h5 -o 'out{}'", generation));
    return here.ok("sample pruned.h5 --json --prompt the --tokens 300 --temperature 9 --seed 2")
        .json()["texts"][0];
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
TEST_F(CliHub, OnlyNetworksThatConfigJsonDescribesAreExported) {
  const auto trained = [&](const std::string& family, const std::string& change) {
    here.shell("rm -rf out again.h5");
    here.ok(
        fmt::format("train c.toml --resume none --set model.kind=decoder --set model.family={} "
                    "--set train.steps=1 --set pruning.method=none --set model.{}",
                    family, change));
    return here.run("export run/checkpoints/last.h5 -o out");
  };
  for (const auto& [family, change, key, value] :
       std::vector<std::tuple<std::string, std::string, std::string, nlohmann::json>>{
           {"qwen2", "window=5", "sliding_window", 5},
           {"mistral", "window=6", "sliding_window", 6},
           {"llama", "kv_heads=1", "num_key_value_heads", 1},
           {"neox", "rotary=none:share=0.5", "rotary_pct", 0.5},
           {"opt", "mlp_width=40", "ffn_dim", 40}}) {
    expect_code(trained(family, change), 0);
    const auto json = nlohmann::json::parse(here.read("out/config.json"));
    EXPECT_EQ(json[key], value) << family;
    EXPECT_TRUE(json.contains("eos_token_id") && json["eos_token_id"].is_null()) << family;
    here.ok("import out -o again.h5");
  }
  for (const auto& [family, change, message] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"llama", "window=5", "model.window: 5 and 0"},
           {"gemma", "window=5", "model.window: 5 and 0"},
           {"neox", "kv_heads=1", "model.kv_heads: 1 and 2"},
           {"opt", "head_width=8", "model.head_width: 8 and 16"},
           {"llama", "rotary=none:share=0.5", "model.rotary:share: 0.5 and 1"}}) {
    expect_error(trained(family, change), 1, message);
    EXPECT_FALSE(here.has("out"));
  }
}

TEST_F(CliHub, AKilledExportOrImportLeavesNothingThatLooksWhole) {
  write_hub_model(here, "GPT2LMHeadModel");
  here.ok("import hub -o dense.h5 --context 16");
  const std::string disk =
      fs::canonical("/proc/self/exe").parent_path() / "libespalier_slow_disk.so";
  for (const auto& [command, target] :
       {std::pair<std::string, std::string>{"export dense.h5 -o out", "out"},
        {"import hub -o again.h5 --context 16", "again.h5"}}) {
    // Killed when its temporary name appears: the first fsync takes longer than this waits.
    expect_code(
        here.shell(fmt::format(
            "SLOW_DISK_SECONDS=30 LD_PRELOAD='{}' {} {} & pid=$!; n=0; until ls -d {}.tmp-* "
            ">/dev/null 2>&1; do sleep 0.02; n=$((n+1)); [ $n -lt 1000 ] || exit 3; done; sleep "
            "0.2; "
            "kill -9 $pid; wait $pid",
            disk, ESPALIER_PROGRAM, command, target)),
        137);
    EXPECT_FALSE(here.has(target)) << target;
    here.ok(command);
    EXPECT_TRUE(here.has(target)) << target;
    EXPECT_NE(here.shell(fmt::format("ls -d {}.tmp-*", target)).code, 0) << "remains of " << target;
  }
}

/// Pipeline and replicas of a run leave no trace in its export.
TEST_F(CliHub, RunsOfSeveralRanksAreExported) {
  write_hub_model(here, "Qwen2ForCausalLM");
  here.ok("import hub -o dense.h5 --context 16");
  here.ok("data tokenize words.txt --tokenizer dense.h5 -o train.bin");
  here.ok("prune dense.h5 -o pruned.h5 --method magnitude --sparsity 0.5");
  here.write("c.toml",
             "[data]\nkind = \"tokens\"\ntrain = [\"train.bin\"]\n[train]\nsteps = 2\n"
             "global_batch = 4\nmicro_batch = 2\neval_batches = 1\n[run]\nthreads = 1\n");
  const auto train = [&](const std::string& launcher, const std::string& more) {
    here.shell_ok(
        fmt::format("{}{} train c.toml --init pruned.h5 {}", launcher, ESPALIER_PROGRAM, more));
  };
  const std::string ranks = fmt::format("timeout 120 '{}/scripts/mpirun.sh' ", ESPALIER_SOURCE_DIR);
  train("", "--out one");
  train(ranks + "2 ", "--out stages --set parallel.pipeline=2");
  for (const char* run : {"one", "stages"}) {
    here.ok(fmt::format("export {0}/checkpoints/step-000002.h5 -o {0}-hub", run));
  }
  EXPECT_EQ(here.read("stages-hub/model.safetensors"), here.read("one-hub/model.safetensors"));
  EXPECT_EQ(here.read("stages-hub/config.json"), here.read("one-hub/config.json"));
  train(ranks + "2 ", "--out replicas --set parallel.zero=1");
  here.ok("export replicas/checkpoints/step-000002.h5 -o replicas-hub");
  here.ok("import replicas-hub -o again.h5 --zeros-are-pruned");
  const auto kept = [&](const std::string& file) {
    return here.run("inspect --json " + file).json()["kept_parameters"].get<int64_t>();
  };
  EXPECT_EQ(kept("again.h5"), kept("pruned.h5"));
}

TEST_F(CliHub, WrongUsage) {
  write_hub_model(here, "GPT2LMHeadModel");
  here.ok("import hub -o dense.h5");
  here.fails("import hub -o x.h5 --config c.toml", 1, "hub is not an ordinary file");
  here.fails("import a.h5 -o x.h5 --config c.toml --zeros-are-pruned", 2, "--zeros-are-pruned");
  here.fails("import hub -o x.h5 --dtype int8", 2, "--dtype");
  here.fails("import hub -o x.h5 --context 0", 2, "--context");
  here.fails("import hub -o x.h5 --context 17", 1, "--context 17 is more than the 16");
  here.fails("import hub -o hub", 1, "hub is a folder; name a file");
  here.fails("import hub -o hub/config.json", 1, "would be replaced");
  here.fails("import hub/model.safetensors -o hub/model.safetensors", 1, "would be replaced");
  here.fails("import none -o x.h5 --config c.toml", 1, "none");
  here.fails("import none -o x.h5", 1, "none does not exist; name the directory");
  EXPECT_FALSE(here.has("x.h5"));
  here.fails("export dense.h5 -o x.h5 --sparse", 2, "--sparse");
  here.fails("export dense.h5 -o out --shard-size 5KG", 1, "\"5KG\" is not a size");
  EXPECT_THAT(here.ok("export dense.h5 -o shards --shard-size 8KB").err,
              ContainsRegex("in [2-9] files,"));
  EXPECT_THAT(here.ok("export dense.h5 -o whole").err, HasSubstr("in 1 file,"));
  here.fails("export dense.h5 -o hub", 1, "hub is not empty");
  here.fails("export none.h5 -o out", 1, "none.h5");
  EXPECT_FALSE(here.has("out"));
  here.write("none.json", "{}");
  here.fails("data tokenize words.txt --tokenizer none.json -o t.bin", 1, "none.json");
  here.ok("import hub -o without.h5 --no-tokenizer");
  here.fails("data tokenize words.txt --tokenizer without.h5 -o t.bin", 1,
             "without.h5 holds no tokenizer");
  EXPECT_FALSE(here.has("t.bin"));
}

TEST_F(CliHub, ATokenizerModelOfSentencePieceTravels) {
  write_hub_model(here, "LlamaForCausalLM");
  fs::remove(here / "hub/tokenizer.json");
  const std::vector<std::string> sentences(20, "the quick brown fox jumps over a lazy dog");
  const std::string options = "--model_type=bpe --character_coverage=1 --vocab_size=";
  const std::string model = train_sentencepiece(options + "40", sentences);
  ASSERT_NE(model.find('\0'), std::string::npos);
  const std::string tokenizer_config = R"({"add_bos_token": true, "add_eos_token": false})";
  here.write("hub/tokenizer.model", model);
  here.write("hub/tokenizer_config.json", tokenizer_config);
  here.ok("import hub -o dense.h5");
  here.ok("data tokenize words.txt --tokenizer dense.h5 -o train.bin");
  here.ok("data tokenize words.txt --tokenizer hub/tokenizer.model -o direct.bin");
  EXPECT_EQ(here.read("train.bin"), here.read("direct.bin"));
  EXPECT_GT(here.read("train.bin").size(), 2000U);
  here.ok("prune dense.h5 -o pruned.h5 --method magnitude --sparsity 0.5");
  const std::string sample = "sample pruned.h5 --prompt 'the quick' --tokens 3 --seed 1 --json";
  const Ran own = here.run(sample);
  const Ran named = here.run(sample + " --tokenizer hub/tokenizer.model");
  expect_code(own, 0);
  expect_code(named, 0);
  EXPECT_EQ(own.json()["texts"], named.json()["texts"]);
  here.ok("sample pruned.h5 --prompt the --tokens 3 --tokenizer dense.h5");
  here.ok("eval pruned.h5 --data words.txt --tokenizer hub/tokenizer.model --stride 8");
  here.ok("export pruned.h5 -o out");
  EXPECT_EQ(here.read("out/tokenizer.model"), model);
  EXPECT_EQ(here.read("out/tokenizer_config.json"), tokenizer_config);
  EXPECT_FALSE(here.has("out/tokenizer.json"));

  // Damaged, or of another model: nothing is written.
  here.write("cut.model", model.substr(0, model.size() / 2));
  here.fails("data tokenize words.txt --tokenizer cut.model -o t.bin", 1,
             "cut.model: the SentencePiece model is cut off or damaged; download it again");
  EXPECT_FALSE(here.has("t.bin"));
  here.write("hub/tokenizer.model", model.substr(0, model.size() / 2));
  here.fails("import hub -o x.h5", 1, "--no-tokenizer imports the model without it");
  here.write("hub/tokenizer.model", train_sentencepiece(options + "45", sentences));
  here.fails("import hub -o x.h5", 1,
             "has tokens up to 44, but the embedding of the model has 40 rows");
  EXPECT_FALSE(here.has("x.h5"));
  here.write("hub/tokenizer.model", model);
  here.write("hub/tokenizer_config.json",
             R"({"added_tokens_decoder": {"1": {"content": "<s>"}, "40": {"content": "<x>"}}})");
  EXPECT_THAT(here.ok("import hub -o x.h5").err,
              HasSubstr("add a token: \"<x>\", which it does not add"));
  here.ok("import hub -o without.h5 --no-tokenizer");
  here.fails("data tokenize words.txt --tokenizer without.h5 -o t.bin", 1,
             "without.h5 holds no tokenizer");
  // A tokenizer.json beside it comes first.
  here.write("hub/tokenizer.json", byte_tokenizer());
  here.ok("import hub -o both.h5");
  here.ok("export both.h5 -o both");
  EXPECT_EQ(here.read("both/tokenizer.json"), byte_tokenizer());
  EXPECT_FALSE(here.has("both/tokenizer.model"));
}

TEST_F(CliHub, ANetworkWithoutArchitectureIsExportedAsArrays) {
  here.ok(
      "train c.toml --set model.norm=rmsnorm --set train.steps=1 --set "
      "pruning.method=none --set train.checkpoint_every=0");
  const std::string last = "run/checkpoints/step-000001.h5";
  here.fails("export " + last + " -o out", 1, "no Hugging Face architecture computes this network");
  EXPECT_FALSE(here.has("out"));
  here.ok("export " + last + " -o plain.h5");
}

}  // namespace
}  // namespace espalier::cli_hub_test
