// GPT-NeoX and Pythia (GPTNeoXForCausalLM). Queries, keys and values of a head are consecutive rows
// of one matrix.
#include "src/hub/families/shared.h"

namespace espalier::hub {
namespace {

// Where keys are missing.
constexpr double kNeoxEpsilon = 1e-5;
constexpr double kNeoxShare = 0.25;

bool has_attention_biases(const io::ModelConfig& model) { return model.biases == "auto"; }

void read_neox(const ConfigJson& json, io::ModelConfig& model) {
  model.kind = "decoder";
  model.family = "neox";
  read_sizes(json, model);
  model.activation = activation_in(json, "hidden_act", "gelu_erf");
  model.norm_epsilon = positive_in(json, "layer_norm_eps", kNeoxEpsilon);
  model.tie_embeddings = json.flag("tie_word_embeddings", false);
  model.rotary_share = positive_in(json, "rotary_pct",
                                   positive_in(json.part("rope_parameters"),  // transformers 5
                                               "partial_rotary_factor", kNeoxShare));
  read_rotary(json, model, {.base_key = "rotary_emb_base"});
  const std::string why =
      fmt::format("the share of rotary_pct is {}; remove one of the two", model.rotary_share);
  json.only("partial_rotary_factor", model.rotary_share, why);
  for (const char* part : {"rope_parameters", "rope_scaling"}) {
    json.part(part).only("partial_rotary_factor", model.rotary_share, why);
  }
  if (model.width % model.heads == 0) {
    json.only("head_dim", model.width / model.heads, "heads divide the width");
  }
  model.residual = json.flag("use_parallel_residual", true) ? "auto" : "sequential";
  model.biases = json.flag("attention_bias", true) ? "auto" : "mlp";
}

Json write_neox(const io::ModelConfig& model) {
  Json json{{"architectures", {"GPTNeoXForCausalLM"}},
            {"model_type", "gpt_neox"},
            {"attention_bias", has_attention_biases(model)},
            {"attention_dropout", 0.0},
            {"hidden_act", activation_name(model.activation)},
            {"hidden_dropout", 0.0},
            {"hidden_size", model.width},
            {"intermediate_size", model.mlp_width},
            {"layer_norm_eps", model.norm_epsilon},
            {"max_position_embeddings", model.context},
            {"num_attention_heads", model.heads},
            {"num_hidden_layers", model.layers},
            {"rotary_pct", model.rotary_share},
            {"tie_word_embeddings", model.tie_embeddings},
            {"use_parallel_residual", model.residual != "sequential"},
            {"vocab_size", model.vocabulary}};
  write_rotary(model, json, "rotary_emb_base");
  return json;
}

std::vector<TensorRule> neox_tensors(const io::ModelConfig& model) {
  std::vector<TensorRule> all{{.tensor = "embed_in.weight", .parameter = "embedding.token"}};
  const std::vector<std::string> both{".weight", ".bias"};
  const std::vector<std::string> attention(both.begin(),
                                           both.end() - (has_attention_biases(model) ? 0 : 1));
  const auto add = [&](const std::string& tensor, const std::string& parameter,
                       const std::vector<std::string>& kinds) {
    for (const std::string& kind : kinds) {
      all.push_back(
          {.tensor = "layers.{}." + tensor + kind, .parameter = "blocks.{}." + parameter + kind});
    }
  };
  add("input_layernorm", "norm1", both);
  for (const std::string& kind : attention) {
    int64_t part = 0;
    for (const char* parameter : {"query", "key", "value"}) {
      all.push_back({.tensor = "layers.{}.attention.query_key_value" + kind,
                     .parameter = std::string("blocks.{}.attention.") + parameter + kind,
                     .form = Form::fused,
                     .heads = model.heads,
                     .part = part++});
    }
  }
  add("attention.dense", "attention.projection", attention);
  add("post_attention_layernorm", "norm2", both);
  add("mlp.dense_h_to_4h", "mlp.expand", both);
  add("mlp.dense_4h_to_h", "mlp.contract", both);
  all.push_back({.tensor = "final_layer_norm.weight", .parameter = "norm.weight"});
  all.push_back({.tensor = "final_layer_norm.bias", .parameter = "norm.bias"});
  if (!model.tie_embeddings) {
    all.push_back({.tensor = "embed_out.weight", .parameter = "head.weight", .prefixed = false});
  }
  return all;
}

std::vector<std::string> neox_ignored(const io::ModelConfig& model) {
  std::vector<std::string> all{"layers.{}.attention.bias", "layers.{}.attention.masked_bias",
                               "layers.{}.attention.rotary_emb.inv_freq", "rotary_emb.inv_freq"};
  if (model.tie_embeddings) {
    all.emplace_back("embed_out.weight");
  }
  return all;
}

}  // namespace

extern const Family kNeox;
const Family kNeox{.name = "gpt_neox",
                   .help = "GPT-NeoX, Pythia",
                   .architecture = "GPTNeoXForCausalLM",
                   .base = "GPTNeoXModel",
                   .prefix = "gpt_neox.",
                   .read = read_neox,
                   .positions_key = "max_position_embeddings",
                   .fits = [](const io::ModelConfig& model) { return is_decoder(model, "neox"); },
                   .write = write_neox,
                   .tensors = neox_tensors,
                   .ignored = neox_ignored};

}  // namespace espalier::hub
