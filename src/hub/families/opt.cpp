// OPT (OPTForCausalLM). The first two rows of its position embedding are of padding.
#include "src/hub/families/shared.h"

namespace espalier::hub {
namespace {

constexpr int64_t kPaddingRows = 2;
constexpr double kOptEpsilon = 1e-5;  // of torch.nn.LayerNorm: config.json has no key

void read_opt(const ConfigJson& json, io::ModelConfig& model) {
  model.kind = "decoder";
  model.family = "opt";
  model.layers = json.number("num_hidden_layers");
  model.heads = json.number("num_attention_heads");
  model.width = json.number("hidden_size");
  model.mlp_width = json.number("ffn_dim");
  model.vocabulary = json.number("vocab_size");
  model.norm_epsilon = kOptEpsilon;
  model.activation = activation_in(json, "activation_function", "relu");
  model.tie_embeddings = json.flag("tie_word_embeddings", true);
  json.only("word_embed_proj_dim", model.width, "embeddings have the width of the blocks");
  json.only("do_layer_norm_before", true, "norms stand before attention and MLP");
  json.only("_remove_final_layer_norm", false, "a norm stands before the head");
  model.biases = json.flag("enable_bias", true) ? "auto" : "none";
  json.only("layer_norm_elementwise_affine", true, "norms have weights");
}

Json write_opt(const io::ModelConfig& model) {
  check(model.norm_epsilon == kOptEpsilon,
        "model.family:norm_epsilon = {}: norms of OPT compute with {}; export plain arrays with -o "
        "FILE.h5",
        model.norm_epsilon, kOptEpsilon);
  return {{"architectures", {"OPTForCausalLM"}},
          {"model_type", "opt"},
          {"activation_function", activation_name(model.activation)},
          {"attention_dropout", 0.0},
          {"do_layer_norm_before", true},
          {"dropout", model.dropout},
          {"enable_bias", model.biases == "auto"},
          {"ffn_dim", model.mlp_width},
          {"hidden_size", model.width},
          {"max_position_embeddings", model.context},
          {"num_attention_heads", model.heads},
          {"num_hidden_layers", model.layers},
          {"tie_word_embeddings", model.tie_embeddings},
          {"vocab_size", model.vocabulary},
          {"word_embed_proj_dim", model.width}};
}

std::vector<TensorRule> opt_tensors(const io::ModelConfig& model) {
  std::vector<TensorRule> all{{.tensor = "embed_tokens.weight", .parameter = "embedding.token"},
                              {.tensor = "embed_positions.weight",
                               .parameter = "embedding.position",
                               .skipped = kPaddingRows,
                               .positions = true}};
  const std::vector<std::string> both{".weight", ".bias"};
  const std::vector<std::string> linear(both.begin(),
                                        both.end() - (model.biases == "auto" ? 0 : 1));
  const auto add = [&](const std::string& tensor, const std::string& parameter,
                       const std::vector<std::string>& kinds) {
    for (const std::string& kind : kinds) {
      all.push_back(
          {.tensor = "layers.{}." + tensor + kind, .parameter = "blocks.{}." + parameter + kind});
    }
  };
  add("self_attn_layer_norm", "norm1", both);
  add("self_attn.q_proj", "attention.query", linear);
  add("self_attn.k_proj", "attention.key", linear);
  add("self_attn.v_proj", "attention.value", linear);
  add("self_attn.out_proj", "attention.projection", linear);
  add("final_layer_norm", "norm2", both);
  add("fc1", "mlp.expand", linear);
  add("fc2", "mlp.contract", linear);
  all.push_back({.tensor = "final_layer_norm.weight", .parameter = "norm.weight"});
  all.push_back({.tensor = "final_layer_norm.bias", .parameter = "norm.bias"});
  if (!model.tie_embeddings) {
    all.push_back({.tensor = "lm_head.weight", .parameter = "head.weight", .prefixed = false});
  }
  return all;
}

std::vector<std::string> opt_ignored(const io::ModelConfig& model) {
  return model.tie_embeddings ? std::vector<std::string>{"lm_head.weight"}
                              : std::vector<std::string>{};
}

}  // namespace

extern const Family kOpt;
const Family kOpt{.name = "opt",
                  .help = "OPT, except 350M",
                  .architecture = "OPTForCausalLM",
                  .base = "OPTModel",
                  .prefix = "model.decoder.",
                  .read = read_opt,
                  .positions_key = "max_position_embeddings",
                  .fits = [](const io::ModelConfig& model) { return is_decoder(model, "opt"); },
                  .write = write_opt,
                  .tensors = opt_tensors,
                  .ignored = opt_ignored};

}  // namespace espalier::hub
