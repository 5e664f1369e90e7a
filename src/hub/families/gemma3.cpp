// Gemma 3, text models (Gemma3ForCausalLM): as Gemma, with norms after attention and MLP and of the
// heads of queries and keys, and most layers with a window and rotary positions of their own.
#include <algorithm>
#include <cmath>

#include "src/hub/families/shared.h"

namespace espalier::hub {
namespace {

constexpr LlamaLike kLikeGemma3{.family = "gemma3",
                                .architecture = "Gemma3ForCausalLM",
                                .type = "gemma3_text",
                                .activation = "gelu",
                                .activation_key = "hidden_activation",
                                .kv_heads = 4,
                                .head_norm = true,
                                .rotary_base = 1'000'000,
                                .plus_one = true,
                                .post_norm = true};

/// layer_types: layers n, 2 n, … attend to all tokens. Older files have only n.
void read_windows(const ConfigJson& json, io::ModelConfig& model) {
  constexpr int64_t kDistance = 6;  // where both keys are missing
  if (json.json().contains("sliding_window") && !json.has("sliding_window")) {
    json.refuse("sliding_window", "layers with a window need its length");
  }
  model.window = json.number("sliding_window", kHubWindow);
  if (!json.has("layer_types")) {
    model.full_every = json.number("sliding_window_pattern", kDistance);
  } else {
    const Json& listed = json.json()["layer_types"];
    const Json types = listed.is_array() ? listed : Json::array();
    const auto first = std::ranges::find(types, Json("full_attention"));
    model.full_every = first == types.end() ? 0 : first - types.begin() + 1;
    bool regular = std::cmp_equal(types.size(), model.layers);
    for (int64_t i = 0; regular && i < model.layers; ++i) {
      const bool full = model.full_every > 0 && (i + 1) % model.full_every == 0;
      regular = types[static_cast<size_t>(i)] == (full ? "full_attention" : "sliding_attention");
    }
    if (!regular) {
      json.refuse("layer_types",
                  "one entry a layer: \"full_attention\" in layers n, 2 n, ..., else "
                  "\"sliding_attention\"");
    }
  }
  if (model.full_every > model.layers) {
    model.full_every = 0;
  }
  if (model.full_every == 1) {
    model.full_every = model.window = 0;
  }
}

void read_gemma3(const ConfigJson& json, io::ModelConfig& model) {
  constexpr double kLocalBase = 10'000;  // these stand for missing keys
  constexpr int64_t kHeadWidth = 256;
  read_llama(json, kLikeGemma3, true, model);
  model.head_width = json.number("head_dim", kHeadWidth);
  read_windows(json, model);
  const ConfigJson sliding = json.part("rope_parameters").part("sliding_attention");
  for (const char* key : {"rope_type", "type"}) {
    sliding.only(key, "default", "rotary positions of layers with a window are not scaled");
  }
  const double local =
      positive_in(sliding, "rope_theta", positive_in(json, "rope_local_base_freq", kLocalBase));
  model.local_rotary_base = model.window > 0 ? local : 0;
  model.attention_scale = 1 / std::sqrt(positive_in(json, "query_pre_attn_scalar", kHeadWidth));
  json.only("attn_logit_softcapping", Json(), "scores are not capped");
  json.only("final_logit_softcapping", Json(), "logits are not capped");
  json.only("use_bidirectional_attention", false, "attention is causal");
}

Json write_gemma3(const io::ModelConfig& model) {
  Json json = write_llama(model, kLikeGemma3);
  json.erase("hidden_act");
  json["hidden_activation"] = activation_name(model.activation);
  json["attention_bias"] = false;
  json["attn_logit_softcapping"] = nullptr;
  json["final_logit_softcapping"] = nullptr;
  const double scalar = 1 / (model.attention_scale * model.attention_scale);
  const double whole = std::round(scalar);
  check(std::abs(scalar - whole) < 1e-6 * scalar,
        "model.family:attention_scale = {:.6g} is no 1 / sqrt of a whole number, which "
        "transformers needs "
        "(query_pre_attn_scalar); export plain arrays with -o FILE.h5",
        model.attention_scale);
  json["query_pre_attn_scalar"] = static_cast<int64_t>(whole);
  json["sliding_window"] = model.window > 0 ? model.window : kHubWindow;
  json["layer_types"] = Json::array();
  for (int64_t i = 0; i < model.layers; ++i) {
    const bool full =
        model.window == 0 || (model.full_every > 0 && (i + 1) % model.full_every == 0);
    json["layer_types"].push_back(full ? "full_attention" : "sliding_attention");
  }
  if (model.local_rotary_base > 0) {
    json["rope_local_base_freq"] = model.local_rotary_base;
  }
  return json;
}

}  // namespace

extern const Family kGemma3;
const Family kGemma3 =
    llama_family<kLikeGemma3>("Gemma 3, text models", "Gemma3TextModel", read_gemma3, write_gemma3);

}  // namespace espalier::hub
