// Llama 1 to 3 (LlamaForCausalLM), and models of that form.
#include "src/hub/families/shared.h"

namespace espalier::hub {
namespace {

constexpr LlamaLike kLikeLlama{
    .family = "llama", .architecture = "LlamaForCausalLM", .type = "llama", .activation = "silu"};

}  // namespace

extern const Family kLlama;
const Family kLlama{
    .name = "llama",
    .help = "Llama 1 to 3, TinyLlama, SmolLM, and others of that form",
    .architecture = kLikeLlama.architecture,
    .base = "LlamaModel",
    .prefix = "model.",
    .read = [](const ConfigJson& json,
               io::ModelConfig& model) { read_llama(json, kLikeLlama, false, model); },
    .positions_key = "max_position_embeddings",
    .fits = [](const io::ModelConfig& model) { return is_decoder(model, kLikeLlama.family); },
    .write = [](const io::ModelConfig& model) { return write_llama(model, kLikeLlama); },
    .tensors = [](const io::ModelConfig& model) { return llama_tensors(model, kLikeLlama); },
    .ignored = llama_ignored};

}  // namespace espalier::hub
