#pragma once
// Keys and tensors that several families share.
#include <string>
#include <string_view>
#include <vector>

#include "src/hub/families/family.h"

namespace espalier::hub {

/// model.activation of the name in config.json; refuses others. `missing`: that of the family.
std::string activation_in(const ConfigJson& json, const std::string& key,
                          const std::string& missing);
/// The name in config.json of model.activation.
std::string activation_name(std::string_view activation);

/// A number above 0; refuses others.
double positive_in(const ConfigJson& json, const std::string& key, double missing);

/// num_hidden_layers, num_attention_heads, hidden_size, intermediate_size, vocab_size.
void read_sizes(const ConfigJson& json, io::ModelConfig& model);
/// How a family names rotary positions.
struct RotaryKeys {
  std::string base_key = "rope_theta";  ///< older name of rope_parameters.rope_theta
  double missing_base = 10'000;
  bool by_layer_type = false;  ///< rope_parameters has a member for each type of layers (Gemma 3)
};
/// Rotary positions: rope_theta and rope_scaling of transformers 4, or rope_parameters of 5.
void read_rotary(const ConfigJson& json, io::ModelConfig& model, const RotaryKeys& keys = {});
/// Adds rope_theta and rope_scaling.
void write_rotary(const io::ModelConfig& model, Json& json,
                  const std::string& base_key = "rope_theta");

/// Whether the network is a decoder of this model.family.
bool is_decoder(const io::ModelConfig& model, std::string_view family);
/// sliding_window of Mistral and Qwen where the key is missing.
constexpr int64_t kHubWindow = 4096;

/// The settings in which Llama, Mistral, Qwen and Gemma differ.
struct LlamaLike {
  std::string_view family;        ///< model.family
  std::string_view architecture;  ///< "LlamaForCausalLM"
  std::string_view type;          ///< model_type
  std::string_view activation;    ///< its model.activation
  std::string_view activation_key = "hidden_act";
  int64_t kv_heads = 0;  ///< where num_key_value_heads is missing; 0: the number of heads
  bool bias = false;     ///< of queries, keys and values
  bool head_norm = false;
  double rotary_base = 10'000;  ///< where rope_theta is missing
  bool plus_one = false;        ///< norms multiply by weight + 1
  bool post_norm = false;       ///< attention and MLP have norms of their outputs
};
/// Keys that all of them have. `tied`: the value where tie_word_embeddings is missing.
void read_llama(const ConfigJson& json, const LlamaLike& like, bool tied, io::ModelConfig& model);
Json write_llama(const io::ModelConfig& model, const LlamaLike& like);
std::vector<TensorRule> llama_tensors(const io::ModelConfig& model, const LlamaLike& like);
std::vector<std::string> llama_ignored(const io::ModelConfig& model);
/// `read` and `write` call those of Llama.
template <const LlamaLike& kLike>
constexpr Family llama_family(std::string_view help, std::string_view base,
                              decltype(Family::read) read, decltype(Family::write) write) {
  return {.name = kLike.type,
          .help = help,
          .architecture = kLike.architecture,
          .base = base,
          .prefix = "model.",
          .read = read,
          .positions_key = "max_position_embeddings",
          .fits = [](const io::ModelConfig& model) { return is_decoder(model, kLike.family); },
          .write = write,
          .tensors = [](const io::ModelConfig& model) { return llama_tensors(model, kLike); },
          .ignored = llama_ignored};
}

}  // namespace espalier::hub
