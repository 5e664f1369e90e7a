// GPT-2 (GPT2LMHeadModel). Its linear layers are "Conv1D": weights are [in, out].
#include "src/hub/families/shared.h"

namespace espalier::hub {
namespace {

constexpr double kGptEpsilon = 1e-5;

/// Kind "gpt" where it has the keys, else "decoder".
void read_gpt2(const ConfigJson& json, io::ModelConfig& model) {
  constexpr int64_t kRatio = 4;
  model.norm = "layernorm";
  model.layers = json.number("n_layer", 12);
  model.heads = json.number("n_head", 12);
  model.width = json.number("n_embd", 768);
  model.vocabulary = json.number("vocab_size", 50257);
  model.tie_embeddings = json.flag("tie_word_embeddings", true);
  // Other names of the same numbers in transformers, which take precedence there.
  const auto alias = [&json](const std::string& other, const std::string& key, int64_t value) {
    json.only(other, value, fmt::format("\"{}\" is {}; remove one of the two", key, value));
  };
  alias("num_hidden_layers", "n_layer", model.layers);
  alias("num_attention_heads", "n_head", model.heads);
  alias("hidden_size", "n_embd", model.width);
  if (json.has("n_positions")) {
    alias("max_position_embeddings", "n_positions", json.number("n_positions"));
  }
  const int64_t inner = json.number("n_inner", kRatio * model.width);
  const std::string activation = activation_in(json, "activation_function", "gelu");
  const double epsilon = positive_in(json, "layer_norm_epsilon", kGptEpsilon);
  json.only("scale_attn_weights", true, "attention divides by the root of a head's size");
  json.only("scale_attn_by_inverse_layer_idx", false, "attention of all blocks is scaled alike");
  if (inner % model.width == 0 && inner / model.width <= 64 && activation == "gelu" &&
      epsilon == kGptEpsilon) {
    model.kind = "gpt";
    model.mlp_ratio = inner / model.width;
    return;
  }
  model.kind = "decoder";
  model.family = "gpt2";
  model.mlp_width = inner;
  model.activation = activation;
  model.norm_epsilon = epsilon;
}

bool fits_gpt2(const io::ModelConfig& model) {
  return (model.kind == "gpt" && model.norm == "layernorm") || is_decoder(model, "gpt2");
}

Json write_gpt2(const io::ModelConfig& model) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"activation_function", activation_name(model.activation)},
          {"attn_pdrop", 0.0},
          {"embd_pdrop", model.dropout},
          {"resid_pdrop", model.dropout},
          {"layer_norm_epsilon", model.norm_epsilon},
          {"n_embd", model.width},
          {"n_head", model.heads},
          {"n_inner", model.mlp_width},
          {"n_layer", model.layers},
          {"n_positions", model.context},
          {"tie_word_embeddings", model.tie_embeddings},
          {"vocab_size", model.vocabulary}};
}

std::vector<TensorRule> gpt2_tensors(const io::ModelConfig& model) {
  std::vector<TensorRule> all{
      {.tensor = "wte.weight", .parameter = "embedding.token"},
      {.tensor = "wpe.weight", .parameter = "embedding.position", .positions = true}};
  const auto add = [&](const std::string& tensor, const std::string& parameter, Form weight) {
    all.push_back({.tensor = "h.{}." + tensor + ".weight",
                   .parameter = "blocks.{}." + parameter + ".weight",
                   .form = weight});
    all.push_back(
        {.tensor = "h.{}." + tensor + ".bias", .parameter = "blocks.{}." + parameter + ".bias"});
  };
  add("ln_1", "norm1", Form::same);
  add("attn.c_attn", "attention.qkv", Form::transposed);
  add("attn.c_proj", "attention.projection", Form::transposed);
  add("ln_2", "norm2", Form::same);
  add("mlp.c_fc", "mlp.expand", Form::transposed);
  add("mlp.c_proj", "mlp.contract", Form::transposed);
  all.push_back({.tensor = "ln_f.weight", .parameter = "norm.weight"});
  all.push_back({.tensor = "ln_f.bias", .parameter = "norm.bias"});
  if (!model.tie_embeddings) {
    all.push_back({.tensor = "lm_head.weight", .parameter = "head.weight", .prefixed = false});
  }
  return all;
}

std::vector<std::string> gpt2_ignored(const io::ModelConfig& model) {
  std::vector<std::string> all{"h.{}.attn.bias", "h.{}.attn.masked_bias"};  // causal masks
  if (model.tie_embeddings) {
    all.emplace_back("lm_head.weight");
  }
  return all;
}

}  // namespace

extern const Family kGpt2;
const Family kGpt2{.name = "gpt2",
                   .help = "GPT-2 and its relatives of any size",
                   .architecture = "GPT2LMHeadModel",
                   .base = "GPT2Model",
                   .prefix = "transformer.",
                   .read = read_gpt2,
                   .positions_key = "n_positions",
                   .fits = fits_gpt2,
                   .write = write_gpt2,
                   .tensors = gpt2_tensors,
                   .ignored = gpt2_ignored};

}  // namespace espalier::hub
