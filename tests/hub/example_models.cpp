#include "tests/hub/example_models.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "io/safetensors/numbers.h"
#include "io/safetensors/sharded.h"
#include "io/safetensors/writer.h"
#include "src/core/rng.h"
#include "src/hub/layout.h"

namespace espalier::hub {
namespace {

namespace fs = std::filesystem;

std::vector<float> drawn(size_t count, uint64_t seed, double zeros) {
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) {
    const Philox bits = philox(seed, 0, i);
    const double uniform = static_cast<double>(bits[0]) * 0x1p-32;
    const auto value = static_cast<float>((static_cast<double>(bits[1]) * 0x1p-31 - 1) * 0.3);
    out[i] = uniform < zeros ? std::copysign(0.0F, value) : value;
  }
  return out;
}

const char* const kNeox = R"({"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox",
        "hidden_act": "gelu", "hidden_size": 24, "intermediate_size": 96, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 64, "num_attention_heads": 3, "num_hidden_layers": 2,
        "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": false,
        "torch_dtype": "float32", "use_parallel_residual": true, "vocab_size": 40})";
const char* const kOpt = R"({"architectures": ["OPTForCausalLM"], "model_type": "opt",
        "activation_function": "relu", "do_layer_norm_before": true, "ffn_dim": 96,
        "hidden_size": 24, "max_position_embeddings": 16, "num_attention_heads": 3,
        "num_hidden_layers": 2, "torch_dtype": "float32", "vocab_size": 40,
        "word_embed_proj_dim": 24})";

/// The config.json with these members.
std::string with(const char* config, const char* members) {
  auto json = nlohmann::ordered_json::parse(config);
  json.update(nlohmann::ordered_json::parse(members));
  return json.dump();
}

}  // namespace

const std::vector<ExampleModel>& example_models() {
  static const std::vector<ExampleModel> all{
      {"GPT2LMHeadModel", R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2",
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "n_embd": 24, "n_head": 3,
        "n_inner": null, "n_layer": 2, "n_positions": 16, "torch_dtype": "float32",
        "vocab_size": 40})"},
      {"LlamaForCausalLM", R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "attention_bias": false, "hidden_act": "silu", "hidden_size": 24, "intermediate_size": 40,
        "max_position_embeddings": 64, "num_attention_heads": 6, "num_hidden_layers": 2,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0,
        "high_freq_factor": 4.0, "low_freq_factor": 1.5, "original_max_position_embeddings": 32,
        "rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": false,
        "torch_dtype": "float32", "vocab_size": 40})"},
      {"MistralForCausalLM", R"({"architectures": ["MistralForCausalLM"], "model_type": "mistral",
        "head_dim": 6, "hidden_act": "silu", "hidden_size": 24, "intermediate_size": 40,
        "max_position_embeddings": 64, "num_attention_heads": 6, "num_hidden_layers": 2,
        "num_key_value_heads": 3, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "sliding_window": 20, "tie_word_embeddings": false, "torch_dtype": "float32",
        "vocab_size": 40})"},
      {"Qwen2ForCausalLM", R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
        "hidden_act": "silu", "hidden_size": 24, "intermediate_size": 40, "max_window_layers": 2,
        "max_position_embeddings": 64, "num_attention_heads": 6, "num_hidden_layers": 2,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
        "sliding_window": 32, "tie_word_embeddings": true, "torch_dtype": "float32",
        "use_sliding_window": false, "vocab_size": 40})"},
      {"Qwen3ForCausalLM", R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
        "attention_bias": false, "head_dim": 8, "hidden_act": "silu", "hidden_size": 24,
        "intermediate_size": 40, "max_position_embeddings": 64, "num_attention_heads": 6,
        "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
        "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 16,
        "rope_type": "yarn"}, "rope_theta": 1000000, "sliding_window": null,
        "tie_word_embeddings": false, "torch_dtype": "float32", "use_sliding_window": false,
        "vocab_size": 40})"},
      {"GemmaForCausalLM", R"({"architectures": ["GemmaForCausalLM"], "model_type": "gemma",
        "attention_bias": false, "head_dim": 8, "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": null, "hidden_size": 24, "intermediate_size": 40,
        "max_position_embeddings": 64, "num_attention_heads": 3, "num_hidden_layers": 2,
        "num_key_value_heads": 1, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
        "torch_dtype": "float32", "vocab_size": 40})"},
      {"Gemma3ForCausalLM", R"({"architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text", "attention_bias": false, "attn_logit_softcapping": null,
        "final_logit_softcapping": null, "head_dim": 8, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 24, "intermediate_size": 40, "layer_types": ["sliding_attention",
        "sliding_attention", "full_attention"], "max_position_embeddings": 64,
        "num_attention_heads": 3, "num_hidden_layers": 3, "num_key_value_heads": 1,
        "query_pre_attn_scalar": 12, "rms_norm_eps": 1e-06, "rope_local_base_freq": 100.0,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "rope_theta": 1000000.0,
        "sliding_window": 7, "torch_dtype": "float32", "use_bidirectional_attention": false,
        "vocab_size": 40})"},
      {"GPTNeoXForCausalLM", kNeox},
      {"OPTForCausalLM", kOpt},
      {"GPTNeoXForCausalLM", with(kNeox, R"({"attention_bias": true, "rotary_pct": 1.0,
        "use_parallel_residual": false})"),
       "Sequential"},
      {"GPTNeoXForCausalLM", with(kNeox, R"({"attention_bias": false})"), "WithoutAttentionBiases"},
      {"OPTForCausalLM", with(kOpt, R"({"enable_bias": false})"), "WithoutBiases"}};
  return all;
}

const ExampleModel& example_model(const std::string& architecture) {
  for (const ExampleModel& model : example_models()) {
    if (model.architecture == architecture) {
      return model;
    }
  }
  throw std::out_of_range(architecture);
}

std::string config_with(const std::string& architecture, const std::string& key,
                        const std::string& value) {
  auto json = nlohmann::ordered_json::parse(example_model(architecture).config);
  if (value.empty()) {
    json.erase(key);
  } else {
    json[key] = nlohmann::ordered_json::parse(value);
  }
  return json.dump();
}

std::string byte_level_tokenizer(const std::string& vocabulary, const std::string& merges,
                                 const std::string& added) {
  return R"({"version":"1.0","added_tokens":)" + added +
         R"(,"normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,)"
         R"("trim_offsets":true,"use_regex":true},"post_processor":null,)"
         R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":)" +
         vocabulary + R"(,"merges":)" + merges + "}}";
}

std::string special_token(int id) {
  return fmt::format(R"([{{"id":{},"content":"<x>","single_word":false,"lstrip":false,)"
                     R"("rstrip":false,"normalized":false,"special":true}}])",
                     id);
}

MadeTensors make_tensors(const std::string& config, io::SafetensorsType type, uint64_t seed,
                         double zeros) {
  const ConfigJson json(config, "config.json");
  const Family& family = family_of(json);
  io::ModelConfig model;
  family.read(json, model);
  model.context = json.number(std::string(family.positions_key));
  const Layout layout(family, model, specs_of(model), family.prefix);
  MadeTensors out;
  for (const TensorPlace& place : layout.tensors()) {
    std::vector<float> values = drawn(static_cast<size_t>(place.count()), seed++, zeros);
    MadeTensor& made = out[place.name];
    made = {.type = type, .shape = place.shape};
    made.bytes.resize(values.size() * io::bits_of(type) / 8);
    io::encode_numbers(Tensor(values.data(), DType::fp32, Shape{place.count()}), type, made.bytes);
  }
  return out;
}

void write_model(const fs::path& folder, const std::string& config, const MadeTensors& tensors,
                 uint64_t shard_bytes) {
  fs::create_directories(folder);
  std::ofstream(folder / "config.json") << config;
  std::vector<io::SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({.name = name, .type = tensor.type, .shape = tensor.shape});
  }
  io::SafetensorsWriter writer(folder / "model.safetensors", entries,
                               {.max_shard_bytes = shard_bytes});
  for (const auto& [name, tensor] : tensors) {
    writer.write_bytes(name, tensor.bytes);
  }
  writer.commit();
}

MadeTensors write_gpt2(const fs::path& folder) {
  const std::string& config = example_model("GPT2LMHeadModel").config;
  MadeTensors made = make_tensors(config, io::SafetensorsType::f32);
  write_model(folder, config, made);
  return made;
}

MadeTensors read_model(const fs::path& folder) {
  const io::ShardedSafetensors files(folder);
  MadeTensors out;
  for (const std::string& name : files.names()) {
    const io::SafetensorsTensor& tensor = files.tensor(name);
    MadeTensor& made = out[name];
    made = {.type = tensor.type, .shape = tensor.shape};
    made.bytes.resize(tensor.bytes());
    files.read_bytes(name, made.bytes);
  }
  return out;
}

std::string difference(const MadeTensors& a, const MadeTensors& b) {
  for (const auto& [name, tensor] : a) {
    const auto found = b.find(name);
    if (found == b.end()) {
      return name + " is missing";
    }
    if (found->second.type != tensor.type || found->second.shape != tensor.shape) {
      return name + " has another type or shape";
    }
    if (found->second.bytes != tensor.bytes) {
      return name + " has other bytes";
    }
  }
  return a.size() == b.size() ? "" : "the second has more tensors";
}

}  // namespace espalier::hub
