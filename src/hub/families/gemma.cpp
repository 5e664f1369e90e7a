// Gemma 1 (GemmaForCausalLM): as Llama, with gated GELU, and norms that multiply by weight + 1.
#include "src/hub/families/shared.h"

namespace espalier::hub {
namespace {

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

extern const Family kGemma;
const Family kGemma{
    .name = "gemma",
    .help = "Gemma 1",
    .architecture = kLikeGemma.architecture,
    .base = "GemmaModel",
    .prefix = "model.",
    .read = read_gemma,
    .positions_key = "max_position_embeddings",
    .fits = [](const io::ModelConfig& model) { return is_decoder(model, kLikeGemma.family); },
    .write = write_gemma,
    .tensors = [](const io::ModelConfig& model) { return llama_tensors(model, kLikeGemma); },
    .ignored = llama_ignored};

}  // namespace espalier::hub
