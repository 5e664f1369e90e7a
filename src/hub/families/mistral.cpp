// Mistral (MistralForCausalLM): as Llama, with a window of attention in all layers.
#include "src/hub/families/shared.h"

namespace espalier::hub {
namespace {

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

}  // namespace

extern const Family kMistral;
const Family kMistral{
    .name = "mistral",
    .help = "Mistral, with or without a window of attention",
    .architecture = kLikeMistral.architecture,
    .base = "MistralModel",
    .prefix = "model.",
    .read = read_mistral,
    .positions_key = "max_position_embeddings",
    .fits = [](const io::ModelConfig& model) { return is_decoder(model, kLikeMistral.family); },
    .write = write_mistral,
    .tensors = [](const io::ModelConfig& model) { return llama_tensors(model, kLikeMistral); },
    .ignored = llama_ignored};

}  // namespace espalier::hub
