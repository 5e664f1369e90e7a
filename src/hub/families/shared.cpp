#include "src/hub/families/shared.h"

#include <array>
#include <cmath>
#include <utility>

namespace espalier::hub {
namespace {

/// Names in config.json, and model.activation; export writes the first name of each.
constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kActivations{
    {{"silu", "silu"},
     {"gelu_pytorch_tanh", "gelu"},
     {"gelu", "gelu_erf"},
     {"relu", "relu"},
     {"swish", "silu"},
     {"gelu_new", "gelu"},
     {"gelu_fast", "gelu"}}};

/// Throws Failure unless all of the keys are there.
void check_has(const ConfigJson& scaling, const std::string& type,
               std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    check(scaling.has(key),
          "{}: the scaling of rotary positions has no \"{}\", which type {} needs; "
          "download config.json again",
          scaling.file(), key, type);
  }
}

/// attention_factor of yarn; 0: its default.
double yarn_gain(const ConfigJson& scaling, double factor) {
  if (scaling.has("attention_factor")) {
    return positive_in(scaling, "attention_factor", 1);
  }
  const double one = scaling.real("mscale", 0), all = scaling.real("mscale_all_dim", 0);
  if (one == 0 || all == 0) {
    return 0;
  }
  const double growth = factor > 1 ? 0.1 * std::log(factor) : 0;
  if (one * growth + 1 <= 0 || all * growth + 1 <= 0) {
    scaling.refuse("mscale", "the gain of rotary positions must be above 0");
  }
  return (one * growth + 1) / (all * growth + 1);
}

/// The member of the config that scales rotary positions. `old_context`: from another place, which
/// has priority; 0: none.
void read_scaling(const ConfigJson& scaling, const std::string& type, const ConfigJson& json,
                  int64_t old_context, io::ModelConfig& model) {
  constexpr double kYarnHigh = 32;
  if (type == "default") {
    check(scaling.has("rope_type") || scaling.has("type") || !scaling.has("factor"),
          "{}: the scaling of rotary positions has no \"rope_type\"; download config.json again",
          json.file());
    return;
  }
  if (type != "linear" && type != "llama3" && type != "yarn") {
    scaling.refuse(scaling.has("rope_type") ? "rope_type" : "type",
                   "rotary positions are scaled by linear, llama3 or yarn");
  }
  check_has(scaling, type, {"factor"});
  model.rotary_scaling = type;
  model.rotary_factor = positive_in(scaling, "factor", 1);
  if (type == "linear") {
    return;
  }
  if (scaling.is_null("original_max_position_embeddings")) {
    scaling.refuse("original_max_position_embeddings", "it must be a number, or missing");
  }
  model.rotary_context = old_context > 0 ? old_context
                                         : scaling.number("original_max_position_embeddings",
                                                          json.number("max_position_embeddings"));
  if (type == "llama3") {
    check_has(scaling, type, {"low_freq_factor", "high_freq_factor"});
    model.rotary_low = positive_in(scaling, "low_freq_factor", 1);
    model.rotary_high = positive_in(scaling, "high_freq_factor", 4);
  } else {
    // 0 is the default, as in transformers.
    const double low = scaling.real("beta_slow", 0), high = scaling.real("beta_fast", 0);
    model.rotary_low = low != 0 ? low : 1;
    model.rotary_high = high != 0 ? high : kYarnHigh;
    model.rotary_gain = yarn_gain(scaling, model.rotary_factor);
    scaling.only("truncate", true, "the ends of the scaled range are whole numbers");
  }
}

/// Without the base and the share, which are compared with other keys, and under one name of its
/// type.
Json plain_scaling(const ConfigJson& scaling) {
  Json plain = scaling.json();
  plain["rope_type"] = scaling.word("rope_type", scaling.word("type", "default"));
  for (const char* key : {"type", "rope_theta", "partial_rotary_factor"}) {
    plain.erase(key);
  }
  return plain["rope_type"] == "default" ? Json{{"rope_type", "default"}} : plain;
}

}  // namespace

std::string activation_in(const ConfigJson& json, const std::string& key,
                          const std::string& missing) {
  if (!json.has(key)) {
    if (json.is_null(key)) {
      json.refuse(key, "it must be the name of a function, or missing");
    }
    return missing;
  }
  const std::string name = json.word(key, "");
  std::string known;
  for (const auto& [theirs, ours] : kActivations) {
    if (name == theirs) {
      return std::string(ours);
    }
    known += (known.empty() ? "" : ", ") + std::string(theirs);
  }
  json.refuse(key, "blocks compute " + known);
}

std::string activation_name(std::string_view activation) {
  for (const auto& [theirs, ours] : kActivations) {
    if (activation == ours) {
      return std::string(theirs);
    }
  }
  fail("model.family:activation = \"{}\" has no name in Hugging Face's config.json", activation);
}

double positive_in(const ConfigJson& json, const std::string& key, double missing) {
  const double value = json.real(key, missing);
  if (value <= 0 || json.is_null(key)) {
    json.refuse(key, "it must be above 0");
  }
  return value;
}

void read_sizes(const ConfigJson& json, io::ModelConfig& model) {
  model.layers = json.number("num_hidden_layers");
  model.heads = json.number("num_attention_heads");
  model.width = json.number("hidden_size");
  model.mlp_width = json.number("intermediate_size");
  model.vocabulary = json.number("vocab_size");
}

void read_rotary(const ConfigJson& json, io::ModelConfig& model, const RotaryKeys& keys) {
  // transformers 5 joins base and scaling in rope_parameters. It reads the older keys too.
  const bool joined = json.has_members("rope_parameters");
  const bool older = json.has_members("rope_scaling");
  ConfigJson scaling = json.part(joined ? "rope_parameters" : "rope_scaling");
  if (joined && keys.by_layer_type) {
    if (!scaling.has("full_attention") && !scaling.has("sliding_attention")) {
      json.refuse("rope_parameters",
                  "it needs \"full_attention\" and \"sliding_attention\", which each hold the "
                  "parameters of such layers");
    }
    scaling = scaling.part("full_attention");
  } else if (joined) {
    for (const char* type : {"full_attention", "sliding_attention"}) {
      if (scaling.has(type)) {
        scaling.refuse(type, "all layers rotate alike: move its members to rope_parameters");
      }
    }
  }
  const double base = positive_in(json, keys.base_key, keys.missing_base);
  model.rotary_base = positive_in(scaling, "rope_theta", base);
  // Versions of transformers differ in which of several places counts.
  const std::string why =
      fmt::format("the base of rotary positions is {} elsewhere; remove one", model.rotary_base);
  json.only(keys.base_key, model.rotary_base, why);
  json.only("rope_theta", model.rotary_base, why);
  if (joined && older) {  // objects with equal members in any order are equal
    const ConfigJson other = json.part("rope_scaling");
    other.only("rope_theta", model.rotary_base, why);
    if (!json.has(keys.base_key)) {
      other.only("rope_theta", keys.missing_base, why);
      scaling.only("rope_theta", keys.missing_base,
                   fmt::format("with rope_scaling, the base is {}; remove rope_scaling", base));
    }
    const nlohmann::json plain = plain_scaling(other);
    if (plain != nlohmann::json(plain_scaling(scaling))) {
      json.refuse("rope_parameters",
                  fmt::format("rope_scaling is {}; remove one of the two", plain.dump()));
    }
  }
  const std::string other_type = scaling.word("type", "default");
  const std::string type = scaling.word("rope_type", other_type);
  if (scaling.has("type") && type != other_type) {  // which of them counts depends on the family
    scaling.refuse("type", fmt::format("\"rope_type\" is \"{}\": remove one of the two", type));
  }
  if (json.is_null("original_max_position_embeddings")) {
    json.refuse("original_max_position_embeddings", "it must be a number, or missing");
  }
  const int64_t old_context =
      keys.by_layer_type ? 0 : json.number("original_max_position_embeddings", 0);
  read_scaling(scaling, type, json, old_context, model);
}

void write_rotary(const io::ModelConfig& model, Json& json, const std::string& base_key) {
  json[base_key] = model.rotary_base;
  if (model.rotary_scaling == "none") {
    json["rope_scaling"] = nullptr;
    return;
  }
  check(model.rotary_scaling != "dynamic",
        "model.rotary = \"dynamic\" computes with model.context, and transformers with the "
        "length of each sequence; export plain arrays with -o FILE.h5");
  Json scaling{{"rope_type", model.rotary_scaling},
               {"factor", model.rotary_factor},
               {"original_max_position_embeddings",
                model.rotary_context > 0 ? model.rotary_context : model.context}};
  const bool by_turns = model.rotary_scaling == "llama3";
  if (by_turns || model.rotary_scaling == "yarn") {
    constexpr double kLlamaHigh = 4;
    constexpr double kYarnHigh = 32;
    const double high = by_turns ? kLlamaHigh : kYarnHigh;
    scaling[by_turns ? "low_freq_factor" : "beta_slow"] = model.rotary_low;
    scaling[by_turns ? "high_freq_factor" : "beta_fast"] =
        model.rotary_high > 0 ? model.rotary_high : high;
  }
  if (model.rotary_gain > 0) {
    check(model.rotary_scaling == "yarn",
          "a gain of model.rotary = \"{}\" has no key in Hugging Face's "
          "config.json; export plain arrays with -o FILE.h5",
          model.rotary_scaling);
    scaling["attention_factor"] = model.rotary_gain;
  }
  json["rope_scaling"] = scaling;
}

bool is_decoder(const io::ModelConfig& model, std::string_view family) {
  return model.kind == "decoder" && model.family == family;
}

void read_llama(const ConfigJson& json, const LlamaLike& like, bool tied, io::ModelConfig& model) {
  model.kind = "decoder";
  model.family = like.family;
  read_sizes(json, model);
  if (like.plus_one && json.is_null("num_key_value_heads")) {
    json.refuse("num_key_value_heads", "it must be a number, or missing");
  }
  const bool heads_alike = like.kv_heads == 0 || json.is_null("num_key_value_heads");
  model.kv_heads = json.number("num_key_value_heads", heads_alike ? model.heads : like.kv_heads);
  model.head_width = json.number("head_dim", model.width / model.heads);
  model.norm_epsilon = positive_in(json, "rms_norm_eps", 1e-6);
  model.tie_embeddings = json.flag("tie_word_embeddings", tied);
  model.activation =
      activation_in(json, std::string(like.activation_key), std::string(like.activation));
  read_rotary(json, model, {.missing_base = like.rotary_base, .by_layer_type = like.post_norm});
  const ConfigJson joined = json.part("rope_parameters");
  for (const ConfigJson& of : {json, json.part("rope_scaling"), joined,
                               joined.part("full_attention"), joined.part("sliding_attention")}) {
    of.only("partial_rotary_factor", 1.0, "all features of a head are rotated");
  }
  json.only("mlp_bias", false, "MLPs have no biases");
  if (!like.bias) {
    json.only("attention_bias", false, "attention has no biases in this family");
  }
}

Json write_llama(const io::ModelConfig& model, const LlamaLike& like) {
  Json json{{"architectures", {like.architecture}},
            {"model_type", like.type},
            {"attention_dropout", 0.0},
            {"head_dim", model.head_width},
            {"hidden_act", activation_name(model.activation)},
            {"hidden_size", model.width},
            {"intermediate_size", model.mlp_width},
            {"max_position_embeddings", model.context},
            {"num_attention_heads", model.heads},
            {"num_hidden_layers", model.layers},
            {"num_key_value_heads", model.kv_heads},
            {"rms_norm_eps", model.norm_epsilon},
            {"tie_word_embeddings", model.tie_embeddings},
            {"vocab_size", model.vocabulary}};
  write_rotary(model, json);
  return json;
}

std::vector<TensorRule> llama_tensors(const io::ModelConfig& model, const LlamaLike& like) {
  std::vector<TensorRule> all{{.tensor = "embed_tokens.weight", .parameter = "embedding.token"}};
  const auto norm = [&](const std::string& tensor, const std::string& parameter) {
    all.push_back({.tensor = tensor, .parameter = parameter, .plus_one = like.plus_one});
  };
  const auto add = [&](const std::string& tensor, const std::string& parameter, bool bias) {
    all.push_back({.tensor = "layers.{}." + tensor + ".weight",
                   .parameter = "blocks.{}." + parameter + ".weight"});
    if (bias) {
      all.push_back({.tensor = "layers.{}." + tensor + ".bias",
                     .parameter = "blocks.{}." + parameter + ".bias"});
    }
  };
  norm("layers.{}.input_layernorm.weight", "blocks.{}.norm1.weight");
  add("self_attn.q_proj", "attention.query", like.bias);
  add("self_attn.k_proj", "attention.key", like.bias);
  add("self_attn.v_proj", "attention.value", like.bias);
  if (like.head_norm) {
    norm("layers.{}.self_attn.q_norm.weight", "blocks.{}.attention.query_norm.weight");
    norm("layers.{}.self_attn.k_norm.weight", "blocks.{}.attention.key_norm.weight");
  }
  add("self_attn.o_proj", "attention.projection", false);
  if (like.post_norm) {
    norm("layers.{}.post_attention_layernorm.weight", "blocks.{}.post_norm1.weight");
    norm("layers.{}.pre_feedforward_layernorm.weight", "blocks.{}.norm2.weight");
  } else {
    norm("layers.{}.post_attention_layernorm.weight", "blocks.{}.norm2.weight");
  }
  add("mlp.gate_proj", "mlp.gate", false);
  add("mlp.up_proj", "mlp.up", false);
  add("mlp.down_proj", "mlp.contract", false);
  if (like.post_norm) {
    norm("layers.{}.post_feedforward_layernorm.weight", "blocks.{}.post_norm2.weight");
  }
  norm("norm.weight", "norm.weight");
  if (!model.tie_embeddings) {
    all.push_back({.tensor = "lm_head.weight", .parameter = "head.weight", .prefixed = false});
  }
  return all;
}

std::vector<std::string> llama_ignored(const io::ModelConfig& model) {
  std::vector<std::string> all{"layers.{}.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"};
  if (model.tie_embeddings) {
    all.emplace_back("lm_head.weight");
  }
  return all;
}

}  // namespace espalier::hub
