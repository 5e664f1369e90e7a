// Llama 1 to 3, and the families of that form: Mistral, Qwen 2, Qwen 3 and Gemma 1.
#include <algorithm>

#include "src/hub/families/shared.h"

namespace espalier::hub {
namespace {

constexpr LlamaLike kLikeLlama{
    .family = "llama", .architecture = "LlamaForCausalLM", .type = "llama", .activation = "silu"};

// Mistral: as Llama, with a window of attention in all layers.
constexpr LlamaLike kLikeMistral{.family = "mistral",
                                 .architecture = "MistralForCausalLM",
                                 .type = "mistral",
                                 .activation = "silu",
                                 .kv_heads = 8};

void read_mistral(const ConfigJson& json, io::ModelConfig& model) {
  read_llama(json, kLikeMistral, false, model);
  const bool null = json.json().contains("sliding_window") && !json.has("sliding_window");
  model.window = null ? 0 : json.number("sliding_window", kHubWindow);
}

Json write_mistral(const io::ModelConfig& model) {
  Json json = write_llama(model, kLikeMistral);
  json["sliding_window"] = model.window > 0 ? Json(model.window) : Json();
  return json;
}

/// The window of Qwen's layers, which must be alike. Layers from max_window_layers on have it;
/// newer files list the kind of each layer.
void read_qwen_window(const ConfigJson& json, io::ModelConfig& model) {
  if (json.has("layer_types")) {
    const Json& types = json.json()["layer_types"];
    const bool known = types.is_array() && std::ssize(types) == model.layers &&
                       std::ranges::all_of(types, [](const Json& one) {
                         return one == "full_attention" || one == "sliding_attention";
                       });
    if (!known) {
      json.refuse("layer_types", "one entry a layer, \"full_attention\" or \"sliding_attention\"");
    }
  }
  if (!json.flag("use_sliding_window", false) || json.is_null("sliding_window")) {
    const Json types = json.has("layer_types") ? json.json()["layer_types"] : Json::array();
    if (std::ranges::count(types, Json("sliding_attention")) > 0) {
      json.refuse("layer_types",
                  "layers have a window only with use_sliding_window and sliding_window");
    }
    return;
  }
  const int64_t window = json.number("sliding_window", kHubWindow);
  int64_t windows = 0;
  if (json.has("layer_types")) {
    const Json& types = json.json()["layer_types"];
    windows = types.is_array() ? std::ranges::count(types, Json("sliding_attention")) : -1;
  } else {
    constexpr int64_t kFirst = 28;  // where the key is missing
    const Json& json_first = json.json();
    const int64_t first =
        json_first.contains("max_window_layers") && json_first["max_window_layers"] == 0
            ? 0
            : json.number("max_window_layers", kFirst);
    windows = std::max<int64_t>(model.layers - first, 0);
  }
  if (windows != 0 && windows != model.layers) {
    json.refuse(json.has("layer_types") ? "layer_types" : "max_window_layers",
                "either all layers or none have the window of attention");
  }
  model.window = windows == 0 ? 0 : window;
}

void write_qwen_window(const io::ModelConfig& model, Json& json) {
  json["use_sliding_window"] = model.window > 0;
  json["sliding_window"] = model.window > 0 ? Json(model.window) : Json();
  json["max_window_layers"] = model.window > 0 ? 0 : model.layers;
}

// Qwen 2 and 2.5: as Llama, with biases of queries, keys and values.
constexpr LlamaLike kLikeQwen2{.family = "qwen2",
                               .architecture = "Qwen2ForCausalLM",
                               .type = "qwen2",
                               .activation = "silu",
                               .kv_heads = 32,
                               .bias = true};

void read_qwen2(const ConfigJson& json, io::ModelConfig& model) {
  read_llama(json, kLikeQwen2, false, model);
  read_qwen_window(json, model);
}

Json write_qwen2(const io::ModelConfig& model) {
  Json json = write_llama(model, kLikeQwen2);
  write_qwen_window(model, json);
  return json;
}

// Qwen 3: as Llama, with norms of the heads of queries and keys.
constexpr LlamaLike kLikeQwen3{.family = "qwen3",
                               .architecture = "Qwen3ForCausalLM",
                               .type = "qwen3",
                               .activation = "silu",
                               .kv_heads = 32,
                               .head_norm = true};

void read_qwen3(const ConfigJson& json, io::ModelConfig& model) {
  read_llama(json, kLikeQwen3, false, model);
  constexpr int64_t kHeadWidth = 128;  // where the key is missing
  model.head_width = json.number("head_dim", kHeadWidth);
  read_qwen_window(json, model);
}

Json write_qwen3(const io::ModelConfig& model) {
  Json json = write_llama(model, kLikeQwen3);
  json["attention_bias"] = false;
  write_qwen_window(model, json);
  return json;
}

// Gemma 1: as Llama, with gated GELU, and norms that multiply by weight + 1.
constexpr LlamaLike kLikeGemma{.family = "gemma",
                               .architecture = "GemmaForCausalLM",
                               .type = "gemma",
                               .activation = "gelu",
                               .kv_heads = 16,
                               .plus_one = true};

void read_gemma(const ConfigJson& json, io::ModelConfig& model) {
  read_llama(json, kLikeGemma, true, model);
  constexpr int64_t kHeadWidth = 256;  // where the key is missing
  model.head_width = json.number("head_dim", kHeadWidth);
  if (model.activation == "gelu_erf") {  // of the first files, which mean the approximation
    model.activation = "gelu";
  }
  json.only("use_bidirectional_attention", false, "attention is causal");
}

Json write_gemma(const io::ModelConfig& model) {
  Json json = write_llama(model, kLikeGemma);
  json["attention_bias"] = false;
  return json;
}

}  // namespace

extern const Family kLlama, kMistral, kQwen2, kQwen3, kGemma;
const Family kLlama = llama_family<kLikeLlama>(
    "Llama 1 to 3, TinyLlama, SmolLM, and others of that form", "LlamaModel",
    [](const ConfigJson& json, io::ModelConfig& model) {
      read_llama(json, kLikeLlama, false, model);
    },
    [](const io::ModelConfig& model) { return write_llama(model, kLikeLlama); });
const Family kMistral = llama_family<kLikeMistral>("Mistral, with or without a window of attention",
                                                   "MistralModel", read_mistral, write_mistral);
const Family kQwen2 =
    llama_family<kLikeQwen2>("Qwen 2 and 2.5", "Qwen2Model", read_qwen2, write_qwen2);
const Family kQwen3 =
    llama_family<kLikeQwen3>("Qwen 3, dense models", "Qwen3Model", read_qwen3, write_qwen3);
const Family kGemma = llama_family<kLikeGemma>("Gemma 1", "GemmaModel", read_gemma, write_gemma);

}  // namespace espalier::hub
