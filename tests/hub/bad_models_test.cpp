// Directories that cannot be imported, and exports that cannot be written: the error names cause
// and fix, and nothing is written.
#include <fstream>

#include "io/checkpoint/checkpoint.h"
#include "io/files/raw_file.h"
#include "io/safetensors/writer.h"
#include "src/hub/export.h"
#include "src/hub/families/family.h"
#include "src/hub/import.h"
#include "tests/hub/example_models.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"

namespace espalier::hub::bad_models_test {
namespace {

using testing::TempDir;
using Type = io::SafetensorsType;
namespace fs = std::filesystem;

const std::string kGpt2 = "GPT2LMHeadModel";

/// Imports DIR/hub to DIR/out/x.h5; checks that the error has `words` and nothing was written.
void expect_refused(const TempDir& dir, const std::string& words, ImportOptions options = {}) {
  options.from = options.from.empty() ? dir / "hub" : options.from;
  options.to = dir / "out/x.h5";
  EXPECT_THAT(failure_of([&] { import_model(options); }), HasSubstr(words));
  EXPECT_THAT(testing::names_in(dir / "out"), IsEmpty()) << words;
}

/// A model of GPT-2 whose tensors `change` changes.
template <class Change>
void expect_tensors_refused(const Change& change, const std::string& words) {
  const TempDir dir;
  const std::string config = example_model(kGpt2).config;
  MadeTensors tensors = make_tensors(config, Type::f32);
  change(tensors);
  write_model(dir / "hub", config, tensors);
  expect_refused(dir, words);
}

void expect_config_refused(const std::string& config, const std::string& words) {
  const TempDir dir;
  write_model(dir / "hub", config, make_tensors(example_model(kGpt2).config, Type::f32));
  expect_refused(dir, words);
}

TEST(BadModels, MissingExtraAndWrongTensorsAreListed) {
  expect_tensors_refused([](MadeTensors& all) { all.erase("transformer.h.1.ln_2.bias"); },
                         "1 tensors are missing: \"transformer.h.1.ln_2.bias\"");
  expect_tensors_refused(
      [](MadeTensors& all) { all["transformer.h.2.ln_2.bias"] = all["transformer.h.1.ln_2.bias"]; },
      "1 tensors are of no parameter: \"transformer.h.2.ln_2.bias\"; download config.json and "
      "weights");
  expect_tensors_refused(
      [](MadeTensors& all) {
        all["transformer.h.0.ln_1.weight"] = all["transformer.h.0.attn.c_attn.bias"];
      },
      "\"transformer.h.0.ln_1.weight\" has shape [72] instead of [24]");
  expect_tensors_refused(
      [](MadeTensors& all) {
        for (int block = 0; block < 2; ++block) {
          for (const char* kind : {".weight", ".bias"}) {
            for (const char* name : {"ln_1", "ln_2", "mlp.c_fc"}) {
              all.erase(fmt::format("transformer.h.{}.{}{}", block, name, kind));
            }
          }
        }
      },
      "12 tensors are missing: ");
  expect_tensors_refused(
      [](MadeTensors& all) {
        MadeTensor& tensor = all["transformer.wte.weight"];
        tensor.type = Type::i32;
      },
      "\"transformer.wte.weight\" has type I32, and weights are read from F64");
}

TEST(BadModels, TensorsThatTheNetworkNeedsNotAreIgnored) {
  const TempDir dir;
  const std::string config = example_model(kGpt2).config;
  MadeTensors tensors = make_tensors(config, Type::f32);
  const MadeTensors made = tensors;
  tensors["transformer.h.0.attn.bias"] = {
      .type = Type::u8, .shape = {1, 1, 16, 16}, .bytes = std::vector<std::byte>(256)};
  tensors["lm_head.weight"] = tensors["transformer.wte.weight"];  // tied
  write_model(dir / "hub", config, tensors);
  import_model({.from = dir / "hub", .to = dir / "x.h5"});
  export_model({.from = dir / "x.h5", .to = dir / "back"});
  EXPECT_EQ(difference(made, read_model(dir / "back")), "");
}

TEST(BadModels, ConfigsOfOtherNetworksAreNamed) {
  const auto with = [](const std::string& key, const std::string& value) {
    return config_with(kGpt2, key, value);
  };
  for (const auto& [config, words] : std::vector<std::pair<std::string, std::string>>{
           {"[1]", "config.json is no JSON object (it has type array)"},
           {"{", "config.json is no JSON object (line 1, column 2: syntax error"},
           {"", "config.json is no JSON object (it is empty)"},
           {"{\n\"n_embd\": NaN}",
            "(line 2, column 11: syntax error while parsing value - invalid "
            "literal; last read: '\"n_embd\": N')"},
           {"{\"a\": \"\xff\"}", "ill-formed UTF-8 byte; last read: '\"?')"},
           {std::string(100, '[') + std::string(100, ']'), "(it has more than 64 levels)"},
           {R"({"model_type": "mamba"})", "architecture \"mamba\" is not supported"},
           {R"({"n_embd": 3})", "names no architecture"},
           {with("architectures", R"(["GPT2LMHeadModle"])"),
            "(nearest: GPT2LMHeadModel); supported: GPT2LMHeadModel"},
           {with("architectures", R"(["BertForMaskedLM"])"),
            "\"BertForMaskedLM\" is not supported; supported: "},
           {with("n_embd", "\"24\""), "\"n_embd\" is \"24\" instead of a number"},
           {with("n_embd", "0"), "\"n_embd\" is 0 instead of a number from 1 to"},
           {with("n_embd", "1e99"), "\"n_embd\" is 1e+99"},
           {with("n_layer", "3"), "12 tensors are missing"},
           {with("vocab_size", "41"), "has shape [40, 24] instead of [41, 24]"},
           {with("n_positions", "17"), "has shape [16, 24] instead of [17, 24]"},
           {with("n_positions", "15"), "has shape [16, 24] instead of [15, 24]"},
           {with("n_positions", ""), "has no \"n_positions\""},
           {with("n_head", "5"),
            "config.json describes a network that espalier does not run: model.width = 24 is not "
            "divisible by model.heads = 5"},
           {with("tie_word_embeddings", "false"), "has no head (\"lm_head.weight\")"},
           {with("activation_function", "\"quick_gelu\""),
            "\"activation_function\": \"quick_gelu\" is not supported"},
           {with("quantization_config", R"({"bits": 4})"),
            "\"quantization_config\": {\"bits\":4} is not supported: the weights are quantized"},
           {with("scale_attn_by_inverse_layer_idx", "true"),
            "\"scale_attn_by_inverse_layer_idx\": true is not supported"},
           {with("add_cross_attention", "true"), "\"add_cross_attention\": true is not"}}) {
    expect_config_refused(config, words);
  }
  const auto llama = [](const std::string& key, const std::string& value) {
    return config_with("LlamaForCausalLM", key, value);
  };
  expect_config_refused(llama("rms_norm_eps", "0"), "\"rms_norm_eps\": 0 is not supported");
  expect_config_refused(llama("partial_rotary_factor", "0.5"),
                        "\"partial_rotary_factor\": 0.5 is not supported");
  expect_config_refused(config_with("GPTNeoXForCausalLM", "rotary_pct", "0"),
                        "\"rotary_pct\": 0 is not supported");
}

/// transformers reads one of several keys, and which one depends on its version.
TEST(BadModels, RotationsThatContradictEachOther) {
  for (const auto& [architecture, key, value, words] : {
           std::tuple("GPTNeoXForCausalLM", "rope_theta", "5", "\"rope_theta\": 5 is not"),
           std::tuple("GPTNeoXForCausalLM", "partial_rotary_factor", "0.125",
                      "\"partial_rotary_factor\": 0.125 is not"),
           std::tuple("GPTNeoXForCausalLM", "rope_parameters", R"({"partial_rotary_factor": 0.5})",
                      "\"rope_parameters.partial_rotary_factor\": 0.5 is not"),
           std::tuple("LlamaForCausalLM", "rope_parameters", R"({"rope_theta": 7})",
                      "the base of rotary positions is 7 elsewhere; remove one"),
           std::tuple("LlamaForCausalLM", "rope_scaling",
                      R"({"type": "linear", "factor": 2, "rope_theta": 7})",
                      "the base of rotary positions is 7 elsewhere; remove one"),
           std::tuple("LlamaForCausalLM", "rope_parameters",
                      R"({"rope_type": "linear", "factor": 2})", "; remove one of the two"),
           std::tuple("LlamaForCausalLM", "rope_parameters",
                      R"({"full_attention": {}, "factor": 2})", "all layers rotate alike"),
           std::tuple("Gemma3ForCausalLM", "rope_parameters", R"({"rope_theta": 7})",
                      "it needs \"full_attention\" and \"sliding_attention\""),
       }) {
    expect_config_refused(config_with(architecture, key, value), words);
  }
  std::string both = config_with("MistralForCausalLM", "rope_parameters",
                                 R"({"factor": 2.0, "rope_type": "linear"})");
  both.replace(both.rfind('}'), 1, R"(, "rope_scaling": {"type": "linear", "factor": 2}})");
  io::ModelConfig model;
  const ConfigJson json(both, "config.json");
  family_of(json).read(json, model);
  EXPECT_EQ(model.rotary_factor, 2);
}

io::ModelConfig network_of(const std::string& config) {
  io::ModelConfig model;
  const ConfigJson json(config, "config.json");
  family_of(json).read(json, model);
  return model;
}

/// With a member in addition.
std::string also(std::string config, const std::string& member) {
  return config.replace(config.rfind('}'), 1, ", " + member + "}");
}

/// The forms that transformers 5 reads, and which of two places has priority there.
TEST(TransformersFive, PlacesOfRotaryKeys) {
  // The base beside rope_parameters, and a rope_scaling that is empty.
  for (const char* more : {"\"rope_scaling\": null", "\"rope_scaling\": {}", "\"a\": 1"}) {
    const io::ModelConfig model =
        network_of(also(config_with("Qwen2ForCausalLM", "rope_parameters",
                                    R"({"rope_type": "linear", "factor": 2})"),
                        more));
    EXPECT_EQ(model.rotary_scaling, "linear") << more;
    EXPECT_EQ(model.rotary_base, 1'000'000) << more;
  }
  // The former context of the top level counts, except in Gemma 3; without any, all positions.
  const std::string top = "\"original_max_position_embeddings\": 4";
  for (const auto& [architecture, scaling, context] :
       {std::tuple("LlamaForCausalLM", R"({"rope_type": "llama3", "factor": 2,
          "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8})",
                   4),
        std::tuple("GPTNeoXForCausalLM", R"({"rope_type": "yarn", "factor": 2})", 4),
        std::tuple("Gemma3ForCausalLM", R"({"rope_type": "yarn", "factor": 2,
          "original_max_position_embeddings": 8})",
                   8)}) {
    EXPECT_EQ(
        network_of(also(config_with(architecture, "rope_scaling", scaling), top)).rotary_context,
        context)
        << architecture;
  }
  EXPECT_EQ(network_of(config_with("MistralForCausalLM", "rope_scaling",
                                   R"({"type": "yarn", "factor": 2})"))
                .rotary_context,
            64);
  // 0.1 m ln 4 + 1, divided.
  EXPECT_NEAR(network_of(config_with("MistralForCausalLM", "rope_scaling",
                                     R"({"type": "yarn", "factor": 4, "mscale": 1.0,
                                         "mscale_all_dim": 0.5})"))
                  .rotary_gain,
              1.138629 / 1.069315, 1e-5);
}

TEST(GemmaOne, GeluIsTheApproximation) {
  EXPECT_EQ(network_of(config_with("GemmaForCausalLM", "hidden_act", "\"gelu\"")).activation,
            "gelu");
  EXPECT_EQ(network_of(config_with("LlamaForCausalLM", "hidden_act", "\"gelu\"")).activation,
            "gelu_erf");
}

TEST(BadModels, KeysThatChangeTheNetworkAreNamed) {
  for (const auto& [key, value] :
       {std::pair("is_causal", "false"), std::pair("is_causal", "null"),
        std::pair("pruned_heads", R"({"0": [1]})"), std::pair("per_layer_config", R"({"0": {}})"),
        std::pair("transformers_weights", "\"other.safetensors\""), std::pair("hidden_size", "48"),
        std::pair("num_hidden_layers", "1"), std::pair("max_position_embeddings", "8")}) {
    expect_config_refused(config_with(kGpt2, key, value), fmt::format("\"{}\": ", key));
  }
  expect_config_refused(config_with("GPTNeoXForCausalLM", "head_dim", "5"), "\"head_dim\": 5 is");
  expect_config_refused(config_with("Qwen2ForCausalLM", "layer_types",
                                    R"(["sliding_attention", "sliding_attention"])"),
                        "only with use_sliding_window");
  for (const char* key :
       {"hidden_act", "rms_norm_eps", "num_key_value_heads", "original_max_position_embeddings"}) {
    expect_config_refused(config_with("GemmaForCausalLM", key, "null"),
                          fmt::format("\"{}\": null is not supported", key));
  }
}

TEST(ImportNotes, KeysWithoutEffectAreNamed) {
  const TempDir dir;
  const std::string config =
      also(config_with(kGpt2, "logits_scaling", "2"), R"("use_cache": true, "x": null)");
  write_model(dir / "hub", config, make_tensors(config, Type::f32));
  EXPECT_THAT(import_model({.from = dir / "hub", .to = dir / "x.h5", .tokenizer = false}).notes,
              ::testing::Contains(HasSubstr("transformers: \"logits_scaling\"")));
}

/// Of a model whose config.json ties the head to the embedding.
struct TiedCase {
  std::string architecture, embedding, head;
};

class TiedHead : public ::testing::TestWithParam<TiedCase> {};

TEST_P(TiedHead, TheFilesCount) {
  const auto& [architecture, embedding, head] = GetParam();
  const std::string config = config_with(architecture, "tie_word_embeddings", "true");
  const MadeTensors made = make_tensors(config, Type::bf16);
  const auto imported = [&](const TempDir& dir, const MadeTensors& tensors) {
    write_model(dir / "hub", config, tensors);
    const auto notes =
        import_model({.from = dir / "hub", .to = dir / "x.h5", .tokenizer = false}).notes;
    export_model({.from = dir / "x.h5", .to = dir / "back"});
    return notes;
  };
  {  // a head of its own
    const TempDir dir;
    MadeTensors tensors = made;
    tensors[head] = tensors[embedding];
    tensors[head].bytes.back() ^= std::byte{1};
    EXPECT_THAT(imported(dir, tensors), ::testing::Contains(HasSubstr("they are not tied")));
    EXPECT_EQ(difference(tensors, read_model(dir / "back")), "");
    const ConfigJson json(io::read_text(dir / "back/config.json", "config"), "config.json");
    EXPECT_FALSE(json.flag("tie_word_embeddings", true));
  }
  {  // only the head
    const TempDir dir;
    MadeTensors tensors = made;
    tensors[head] = tensors[embedding];
    tensors.erase(embedding);
    imported(dir, tensors);
    EXPECT_EQ(difference(made, read_model(dir / "back")), "");
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, TiedHead,
    ::testing::Values(
        TiedCase{kGpt2, "transformer.wte.weight", "lm_head.weight"},
        TiedCase{"OPTForCausalLM", "model.decoder.embed_tokens.weight", "lm_head.weight"},
        TiedCase{"GPTNeoXForCausalLM", "gpt_neox.embed_in.weight", "embed_out.weight"},
        TiedCase{"LlamaForCausalLM", "model.embed_tokens.weight", "lm_head.weight"},
        TiedCase{"GemmaForCausalLM", "model.embed_tokens.weight", "lm_head.weight"}),
    [](const auto& row) { return row.param.architecture; });

/// Base models have no head: of a tied one it is the embedding, else the error says so.
TEST(BaseModels, NeedATiedHead) {
  const std::string tied = config_with("GemmaForCausalLM", "architectures", R"(["GemmaModel"])");
  const TempDir dir;
  write_model(dir / "hub", tied, make_tensors(tied, Type::f32));
  EXPECT_EQ(import_model({.from = dir / "hub", .to = dir / "x.h5"}).architecture,
            "GemmaForCausalLM");
  const std::string untied = config_with("LlamaForCausalLM", "architectures", R"(["LlamaModel"])");
  MadeTensors tensors = make_tensors(untied, Type::f32);
  tensors.erase("lm_head.weight");
  const TempDir other;
  write_model(other / "hub", untied, tensors);
  expect_refused(other, "has no head (\"lm_head.weight\"), as files of base models (LlamaModel)");
}

/// transformers 5 keeps the share of rotated features beside the base.
TEST(TransformersFive, RotaryShareLiesBesideTheBase) {
  std::string text = config_with("GPTNeoXForCausalLM", "rotary_pct", "");
  const size_t base = text.find("\"rotary_emb_base\"");
  text.erase(base, text.find(',', base) + 1 - base);
  text =
      text.replace(text.rfind('}'), 1,
                   R"(, "rope_parameters": {"rope_theta": 5000, "partial_rotary_factor": 0.5}})");
  io::ModelConfig model;
  const ConfigJson json(text, "config.json");
  family_of(json).read(json, model);
  EXPECT_EQ(model.rotary_share, 0.5);
  EXPECT_EQ(model.rotary_base, 5000);
}

/// Which of the two keys transformers reads depends on the family.
TEST(RopeScaling, KeysThatDifferAreRefused) {
  const auto read = [](const std::string& scaling) {
    io::ModelConfig model;
    const ConfigJson json(config_with("LlamaForCausalLM", "rope_scaling", scaling), "config.json");
    family_of(json).read(json, model);
    return model.rotary_scaling;
  };
  EXPECT_THAT(
      failure_of([&] { read(R"({"rope_type": "default", "type": "linear", "factor": 2})"); }),
      HasSubstr("remove one of the two"));
  EXPECT_EQ(read(R"({"rope_type": "linear", "type": "linear", "factor": 2})"), "linear");
  EXPECT_EQ(read(R"({"type": "linear", "factor": 2})"), "linear");
}

TEST(RopeScaling, WithoutItsNumbersIsRefused) {
  for (const auto& [scaling, words] : {
           std::pair(R"({"rope_type": "linear"})", "has no \"factor\", which type linear needs"),
           std::pair(R"({"factor": 2})", "has no \"rope_type\""),
           std::pair(R"({"rope_type": "llama3", "factor": 2, "low_freq_factor": 1})",
                     "has no \"high_freq_factor\""),
           std::pair(R"({"rope_type": "yarn", "factor": 2, "attention_factor": 0})",
                     "\"rope_scaling.attention_factor\": 0 is not supported"),
       }) {
    expect_config_refused(config_with("LlamaForCausalLM", "rope_scaling", scaling), words);
  }
}

TEST(BadModels, TypesThatContradictEachOther) {
  expect_config_refused(config_with("LlamaForCausalLM", "model_type", "\"mistral\""),
                        "\"architectures\" has LlamaForCausalLM, whose type is \"llama\"");
  for (const char* types :
       {R"(["chunked_attention", "full_attention"])", R"(["full_attention"])"}) {
    expect_config_refused(config_with("Qwen2ForCausalLM", "layer_types", types),
                          "one entry a layer, \"full_attention\" or");
  }
}

/// As in Python, where None is no true value.
TEST(ConfigFlags, ThatAreNullAreFalse) {
  io::ModelConfig model;
  const ConfigJson json(config_with("Qwen2ForCausalLM", "tie_word_embeddings", "null"),
                        "config.json");
  family_of(json).read(json, model);
  EXPECT_FALSE(model.tie_embeddings);
  expect_config_refused(config_with("OPTForCausalLM", "do_layer_norm_before", "null"),
                        "\"do_layer_norm_before\": null is not supported");
  const ConfigJson serial(config_with("GPTNeoXForCausalLM", "use_parallel_residual", "null"),
                          "config.json");
  family_of(serial).read(serial, model);
  EXPECT_EQ(model.residual, "sequential");
}

/// Values that transformers cannot use are errors; numbers of no token are ignored with a note.
TEST(BadModels, TokensThatEndATextAreChecked) {
  const auto imported = [](const std::string& value, const std::string& generation) {
    const TempDir dir;
    const std::string config = config_with(kGpt2, "eos_token_id", value);
    write_model(dir / "hub", config, make_tensors(config, Type::f32));
    if (!generation.empty()) {
      std::ofstream(dir / "hub/generation_config.json")
          << R"({"eos_token_id": )" << generation << "}";
    }
    std::string notes;
    const std::string failure = failure_of([&] {
      for (const std::string& note :
           import_model({.from = dir / "hub", .to = dir / "x.h5", .tokenizer = false}).notes) {
        notes += note + "\n";
      }
    });
    EXPECT_EQ(fs::exists(dir / "x.h5"), failure.empty());
    return failure + notes;
  };
  for (const std::string bad : {R"("3")", R"([3, "4"])", R"({"a": 3})", "[[3]]", "[null]"}) {
    EXPECT_THAT(imported(bad, ""), HasSubstr("\"eos_token_id\" of config.json is ")) << bad;
    EXPECT_THAT(imported("3", bad), HasSubstr("correct generation_config.json")) << bad;
  }
  for (const std::string ignored : {"-1", "40", "4000000000", "2.5", "true", "[3, -7]"}) {
    EXPECT_THAT(imported(ignored, ""), HasSubstr("none of the 40 tokens of the network"))
        << ignored;
    EXPECT_THAT(imported("3", ignored), HasSubstr("none of the 40 tokens of the network"));
  }
  for (const std::string good : {"3", "[3, 39]", "null", "[]"}) {
    EXPECT_THAT(imported(good, good), Not(HasSubstr("eos_token_id"))) << good;
  }
}

TEST(BadModels, FilesThatAreMissingOrBroken) {
  const std::string config = example_model(kGpt2).config;
  const MadeTensors tensors = make_tensors(config, Type::f32);
  {
    const TempDir dir;
    expect_refused(dir, "hub does not exist");
    fs::create_directories(dir / "hub");
    expect_refused(dir, "holds no safetensors file");
    std::ofstream(dir / "hub/pytorch_model.bin") << "x";
    expect_refused(dir, "a pickle runs code; in the folder, convert with: python3");
  }
  {
    const TempDir dir;
    write_model(dir / "hub", config, tensors);
    fs::remove(dir / "hub/config.json");
    expect_refused(dir, "has no config.json");
  }
  {
    const TempDir dir;
    write_model(dir / "hub", config, tensors, 3000);
    const auto shard = dir / "hub/model-00002-of-00014.safetensors";
    std::string first;
    for (const std::string& name : testing::names_in(dir / "hub")) {
      if (name.starts_with("model-00002")) {
        first = name;
      }
    }
    const auto path = dir / "hub" / first;
    fs::resize_file(path, fs::file_size(path) - 4);
    expect_refused(dir, first);
    fs::remove(path);
    expect_refused(dir, "1 of them are missing: \"" + first + "\"");
  }
  {
    const TempDir dir;
    write_model(dir / "hub", config, tensors);
    std::ofstream(dir / "hub/generation_config.json") << std::string("a\0b", 3);
    expect_refused(dir, "generation_config.json is no text");
  }
}

TEST(BadModels, Tokenizers) {
  const TempDir dir;
  write_gpt2(dir / "hub");
  EXPECT_THAT(import_model({.from = dir / "hub", .to = dir / "x.h5"}).notes.front(),
              HasSubstr("has no tokenizer.json"));
  std::ofstream(dir / "hub/tokenizer.json") << R"({"model": {"type": "WordPiece"}})";
  expect_refused(dir, "--no-tokenizer imports the model without it");
  std::ofstream(dir / "hub/tokenizer.json")
      << byte_level_tokenizer(R"({"a":0})", "[]", special_token(40));
  expect_refused(dir, "has tokens up to 40, but the embedding of the model has 40 rows");
  import_model({.from = dir / "hub", .to = dir / "y.h5", .tokenizer = false});
}

/// transformers reads the files beside a tokenizer.json, too.
TEST(TokenizerFiles, ThatRequestMoreAreNoted) {
  const TempDir dir;
  write_gpt2(dir / "hub");
  const auto write = [&](const std::string& file, const std::string& text) {
    std::ofstream(dir / ("hub/" + file)) << text;
  };
  write("tokenizer.json", byte_level_tokenizer(R"({"a":0})", "[]", special_token(1)));
  const auto notes = [&] {
    const auto all = import_model({.from = dir / "hub", .to = dir / "x.h5"}).notes;
    return fmt::format("{}", fmt::join(all, "\n"));
  };
  const std::string rows = "the embedding has 40 rows, and the tokenizer 2 tokens";
  EXPECT_EQ(notes(), rows);

  write("tokenizer_config.json", R"({"bos_token": "<x>", "add_prefix_space": false,
         "added_tokens_decoder": {"1": {"content": "<x>", "special": true}},
         "tokenizer_class": "GPT2Tokenizer"})");
  EXPECT_EQ(notes(), rows);

  write("added_tokens.json", R"({"<z>": 3})");
  write("special_tokens_map.json", R"({"pad_token": "<pad>"})");
  EXPECT_EQ(notes(), rows) << "not read beside added_tokens_decoder";

  write("tokenizer_config.json", R"({"bos_token": {"content": "<x>"}, "add_prefix_space": true,
         "extra_special_tokens": {"image": "<y>"}, "add_eos_token": false,
         "tokenizer_class": "LlamaTokenizerFast"})");
  EXPECT_THAT(notes(),
              HasSubstr("add 3 tokens: \"<pad>\", \"<y>\", \"<z>\", which it does not add"));
  EXPECT_THAT(notes(),
              HasSubstr("requests \"add_bos_token\" true, \"add_prefix_space\" true, and"));

  write("tokenizer_config.json",
        R"({"added_tokens_decoder": {"1": {"content": "<x>", "special": true, "lstrip": true}}})");
  EXPECT_THAT(notes(), HasSubstr("tokenizer_config.json finds a token: \"<x>\" otherwise"));

  write("tokenizer_config.json", "{");
  EXPECT_THAT(notes(), HasSubstr("tokenizer_config.json is no JSON object (line 1, column 2"));
}

TEST(BadModels, ContextsThatTheModelHasNot) {
  const TempDir dir;
  write_gpt2(dir / "hub");
  expect_refused(dir, "--context 17 is more than the 16 positions", {.context = 17});
}

TEST(BadModels, DamagedSparseForms) {
  const std::string config = example_model(kGpt2).config;
  const auto refused = [&](const auto& change, const std::string& words) {
    const TempDir dir;
    MadeTensors tensors = make_tensors(config, Type::f32);
    const MadeTensor bias = tensors["transformer.ln_f.bias"];
    tensors.erase("transformer.ln_f.bias");
    std::vector<std::byte> shape(8);
    shape[0] = std::byte{24};
    tensors["transformer.ln_f.bias.shape"] = {.type = Type::i64, .shape = {1}, .bytes = shape};
    tensors["transformer.ln_f.bias.index"] = {
        .type = Type::u8, .shape = {3}, .bytes = std::vector<std::byte>(3, std::byte{0x0f})};
    tensors["transformer.ln_f.bias.values"] = {
        .type = Type::f32,
        .shape = {12},
        .bytes = {bias.bytes.begin(), bias.bytes.begin() + 12 * 4}};
    change(tensors);
    write_model(dir / "hub", config, tensors);
    if (words.empty()) {
      EXPECT_NO_THROW(import_model({.from = dir / "hub", .to = dir / "x.h5"}));
    } else {
      expect_refused(dir, words);
    }
  };
  const std::string name = "transformer.ln_f.bias";
  refused([](MadeTensors&) {}, "");
  refused([&](MadeTensors& all) { all[name + ".index"].bytes[0] = std::byte{0x1f}; },
          "marks 13 elements");
  refused(
      [&](MadeTensors& all) {
        all[name + ".index"].bytes.push_back(std::byte{0});
        all[name + ".index"].shape = {4};
      },
      "needs 3 of U8");
  refused([&](MadeTensors& all) { all[name + ".shape"].bytes[7] = std::byte{0x80}; },
          "names impossible extents");
  refused([&](MadeTensors& all) { all[name + ".shape"].bytes[5] = std::byte{1}; },
          "names impossible extents");
  refused([&](MadeTensors& all) { all.erase(name + ".shape"); },
          "missing: \"transformer.ln_f.bias\"");
}

TEST(BadModels, ExportsThatCannotBeWritten) {
  const TempDir dir;
  write_gpt2(dir / "hub");
  import_model({.from = dir / "hub", .to = dir / "x.h5"});
  const auto refused = [&](const fs::path& to, const std::string& words) {
    EXPECT_THAT(failure_of([&] { export_model({.from = dir / "x.h5", .to = to}); }),
                HasSubstr(words));
  };
  fs::create_directories(dir / "full");
  std::ofstream(dir / "full/file") << "mine";
  refused(dir / "full", "full is not empty");
  EXPECT_THAT(testing::names_in(dir / "full"), ::testing::ElementsAre("file"));
  refused(dir / "full/file", "file is no folder");
  refused(".", "is the folder that this command runs in");
  fs::create_directories(dir / "empty");
  export_model({.from = dir / "x.h5", .to = dir / "empty/"});
  EXPECT_TRUE(fs::exists(dir / "empty/model.safetensors"));

  // A folder of a process that was killed disappears with the next export.
  fs::create_directories(dir / "new.tmp-999999999-nowhere");
  export_model({.from = dir / "x.h5", .to = dir / "new"});
  EXPECT_THAT(testing::names_in(dir / "full"), ::testing::ElementsAre("file"));
}

TEST(BadModels, ValuesBeyondTheRangeOfFp16) {
  const TempDir dir;
  const std::string config = example_model(kGpt2).config;
  MadeTensors made = make_tensors(config, Type::f32);
  const float large = 70'000;
  std::memcpy(made.at("transformer.wte.weight").bytes.data() + 8, &large, sizeof(large));
  write_model(dir / "hub", config, made);
  const auto import_as = [&](DType dtype) {
    return failure_of(
        [&] { import_model({.from = dir / "hub", .to = dir / "x.h5", .dtype = dtype}); });
  };
  EXPECT_THAT(import_as(DType::fp16), HasSubstr("transformer.wte.weight has values beyond 65,504"));
  EXPECT_FALSE(fs::exists(dir / "x.h5"));
  EXPECT_EQ(import_as(DType::bf16), "");
  const auto refused = failure_of(
      [&] { export_model({.from = dir / "x.h5", .to = dir / "back", .dtype = DType::fp16}); });
  EXPECT_THAT(refused, HasSubstr("embedding.token has values beyond 65,504"));
  EXPECT_FALSE(fs::exists(dir / "back"));
}

TEST(BadModels, ValuesBeyondTheRangeOfBf16AndFp32) {
  const std::string config = example_model(kGpt2).config;
  const std::string name = "transformer.wte.weight";
  const auto import_as = [&](Type type, auto value, DType dtype) {
    const TempDir dir;
    MadeTensors made = make_tensors(config, Type::f32);
    MadeTensor& tensor = made.at(name);
    std::vector<std::byte> bytes(tensor.bytes.size() / sizeof(float) * sizeof(value));
    std::memcpy(bytes.data() + sizeof(value), &value, sizeof(value));
    tensor.type = type;
    tensor.bytes = bytes;
    write_model(dir / "hub", config, made);
    return failure_of(
        [&] { import_model({.from = dir / "hub", .to = dir / "x.h5", .dtype = dtype}); });
  };
  const float large = 3.4e38F;  // rounds to infinity
  EXPECT_EQ(import_as(Type::f32, large, DType::fp32), "");
  EXPECT_THAT(import_as(Type::f32, large, DType::bf16),
              HasSubstr(name + " has values beyond 3.39e38, the largest of bf16"));
  EXPECT_EQ(import_as(Type::f64, -1e38, DType::fp32), "");
  EXPECT_THAT(import_as(Type::f64, -1e39, DType::fp32),
              HasSubstr(name + " has values beyond 3.40e38, the largest of fp32"));
}

TEST(BadModels, DamagedCheckpointsLeaveNoFolder) {
  const TempDir dir;
  write_gpt2(dir / "hub");
  import_model({.from = dir / "hub", .to = dir / "x.h5"});
  {  // a byte of the embedding, whose values are read in pieces
    std::fstream file(dir / "x.h5", std::ios::in | std::ios::out | std::ios::binary);
    const MadeTensors made = read_model(dir / "hub");
    const auto& wanted = made.at("transformer.wte.weight").bytes;
    std::string all((std::istreambuf_iterator<char>(file)), {});
    const size_t at =
        all.find(std::string(reinterpret_cast<const char*>(wanted.data()), wanted.size()));
    ASSERT_NE(at, std::string::npos);
    file.clear();
    file.seekp(static_cast<std::streamoff>(at + 100));
    file.put(static_cast<char>(~all[at + 100]));
  }
  EXPECT_THAT(failure_of([&] { export_model({.from = dir / "x.h5", .to = dir / "back"}); }),
              HasSubstr("is damaged (checksum"));
  EXPECT_FALSE(fs::exists(dir / "back"));
  for (const auto& entry : fs::directory_iterator(dir / "")) {
    EXPECT_THAT(entry.path().string(), ::testing::Not(HasSubstr(".tmp-")));
  }
}

}  // namespace
}  // namespace espalier::hub::bad_models_test
