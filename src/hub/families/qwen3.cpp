// Qwen 3 (Qwen3ForCausalLM): as Llama, with norms of the heads of queries and keys.
#include "src/hub/families/shared.h"

namespace espalier::hub {
namespace {

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

}  // namespace

extern const Family kQwen3;
const Family kQwen3{
    .name = "qwen3",
    .help = "Qwen 3, dense models",
    .architecture = kLikeQwen3.architecture,
    .base = "Qwen3Model",
    .prefix = "model.",
    .read = read_qwen3,
    .positions_key = "max_position_embeddings",
    .fits = [](const io::ModelConfig& model) { return is_decoder(model, kLikeQwen3.family); },
    .write = write_qwen3,
    .tensors = [](const io::ModelConfig& model) { return llama_tensors(model, kLikeQwen3); },
    .ignored = llama_ignored};

}  // namespace espalier::hub
