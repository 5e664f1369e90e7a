// Qwen 2 and 2.5 (Qwen2ForCausalLM): as Llama, with biases of queries, keys and values.
#include "src/hub/families/shared.h"

namespace espalier::hub {
namespace {

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

}  // namespace

extern const Family kQwen2;
const Family kQwen2{
    .name = "qwen2",
    .help = "Qwen 2 and 2.5",
    .architecture = kLikeQwen2.architecture,
    .base = "Qwen2Model",
    .prefix = "model.",
    .read = read_qwen2,
    .positions_key = "max_position_embeddings",
    .fits = [](const io::ModelConfig& model) { return is_decoder(model, kLikeQwen2.family); },
    .write = write_qwen2,
    .tensors = [](const io::ModelConfig& model) { return llama_tensors(model, kLikeQwen2); },
    .ignored = llama_ignored};

}  // namespace espalier::hub
