#include "src/model/networks/families.h"

#include <cmath>

namespace espalier::model {
namespace {

constexpr Family kFamilies[]{
    {.name = "gpt2",
     .help = "GPT-2: learned positions, LayerNorm, GELU, biases",
     .norm = "layernorm",
     .activation = "gelu",
     .fused = true,
     .bias = true,
     .output_bias = true,
     .mlp_bias = true},
    {.name = "llama",
     .help = "Llama: rotary positions, RMSNorm, gated SiLU, no biases",
     .norm = "rmsnorm",
     .activation = "silu",
     .gated = true,
     .rotary_base = 10'000},
    {.name = "mistral",
     .help = "Mistral: as llama; model.window limits attention",
     .norm = "rmsnorm",
     .activation = "silu",
     .gated = true,
     .rotary_base = 10'000},
    {.name = "qwen2",
     .help = "Qwen 2 and 2.5: as llama, with biases of queries, keys, values",
     .norm = "rmsnorm",
     .norm_epsilon = 1e-6,
     .activation = "silu",
     .gated = true,
     .bias = true,
     .rotary_base = 1'000'000},
    {.name = "qwen3",
     .help = "Qwen 3: as llama, with norms of the heads of queries and keys",
     .norm = "rmsnorm",
     .norm_epsilon = 1e-6,
     .activation = "silu",
     .gated = true,
     .head_norm = true,
     .rotary_base = 1'000'000},
    {.name = "neox",
     .help = "GPT-NeoX, Pythia: parallel branches, LayerNorm, a quarter of each "
             "head rotated, GELU, biases",
     .norm = "layernorm",
     .activation = "gelu_erf",
     .bias = true,
     .output_bias = true,
     .mlp_bias = true,
     .parallel = true,
     .rotary_base = 10'000,
     .rotary_share = 0.25},
    {.name = "opt",
     .help = "OPT: learned positions, LayerNorm, ReLU, biases",
     .norm = "layernorm",
     .activation = "relu",
     .bias = true,
     .output_bias = true,
     .mlp_bias = true},
    {.name = "gemma",
     .help = "Gemma: as llama, with gated GELU and embeddings times sqrt(width)",
     .norm = "rmsnorm",
     .norm_epsilon = 1e-6,
     .activation = "gelu",
     .gated = true,
     .rotary_base = 10'000,
     .scaled_embedding = true},
    {.name = "gemma3",
     .help = "Gemma 3: as gemma, with norms after attention and MLP and of the "
             "heads of queries and keys; set model.window and full_every",
     .norm = "rmsnorm",
     .norm_epsilon = 1e-6,
     .activation = "gelu",
     .gated = true,
     .head_norm = true,
     .post_norm = true,
     .rotary_base = 1'000'000,
     .local_rotary_base = 10'000,
     .scaled_embedding = true}};

const Family& family_of(const io::ModelConfig& config) {
  return find(families(), "model.family", config.family);
}

void check_heads(const io::ModelConfig& config, const Family& family) {
  check(config.head_width > 0 || config.width % config.heads == 0,
        "model.width = {} is not divisible by model.heads = {}; choose a width that is a multiple, "
        "or set model.head_width",
        config.width, config.heads);
  check(config.kv_heads == 0 || config.heads % config.kv_heads == 0,
        "model.kv_heads = {} does not divide model.heads = {}; set a divisor, or 0 for as many",
        config.kv_heads, config.heads);
  check(!family.fused || config.kv_heads == 0 || config.kv_heads == config.heads,
        "model.kv_heads = {}: model.family = \"{}\" has as many heads of keys as of queries; set 0",
        config.kv_heads, family.name);
  const int64_t head = config.head_width > 0 ? config.head_width : config.width / config.heads;
  check(head <= sparse::kMaxPlannedElements / config.heads / config.width / 3,
        "model.heads = {} and model.head_width = {} make a weight of more than {} elements; set "
        "fewer",
        config.heads, head, sparse::kMaxPlannedElements);
}

/// Keys of rotary positions beside a family that has learned ones.
void check_positions(const io::ModelConfig& config, const Family& family) {
  const bool rotates =
      config.rotary_base > 0 || config.rotary_share > 0 || config.rotary_scaling != "none";
  check(!rotates || family.rotary_base > 0,
        "model.rotary is for rotary positions, and model.family = \"{}\" has learned ones; remove "
        "the key",
        family.name);
}

/// Keys of blocks with and without a window.
void check_windows(const io::ModelConfig& config, const Family& family) {
  check(config.full_every == 0 || config.window > 0,
        "model.full_every = {} is the distance of blocks without a window, and no block has one; "
        "set model.window, or remove the key",
        config.full_every);
  check(config.local_rotary_base == 0 || (config.window > 0 && family.rotary_base > 0),
        "model.rotary:local_base is for rotary positions of blocks with a window; set "
        "model.window and a family with rotary positions, or remove it");
}

bool is_parallel(const io::ModelConfig& config, const Family& family) {
  const bool parallel = config.residual == "auto" ? family.parallel : config.residual == "parallel";
  check(!parallel || !family.post_norm,
        "model.family = \"{0}:residual=parallel\": the branches of {0} have norms after them, "
        "which need sequential branches; remove the option",
        family.name);
  return parallel;
}

RotaryOptions rotary_of(const io::ModelConfig& config, const Family& family, int64_t head) {
  if (family.rotary_base == 0) {
    return {};
  }
  const double share = config.rotary_share > 0 ? config.rotary_share : family.rotary_share;
  const auto width = static_cast<int64_t>(static_cast<double>(head) * share);
  check(width >= 2 && width % 2 == 0,
        "model.rotary:share = {} of heads of {} features are {} features; rotary positions "
        "need an even number: set another share or model.head_width",
        share, head, width);
  check(config.rotary_scaling == "none" || config.rotary_factor >= 1,
        "model.rotary:factor = {} would shorten the context; set 1 or more", config.rotary_factor);
  check(config.rotary_high == 0 || config.rotary_high > config.rotary_low,
        "model.rotary:high = {} must be above low = {}; set a greater one, or 0",
        config.rotary_high, config.rotary_low);
  return {.width = width,
          .base = config.rotary_base > 0 ? config.rotary_base : family.rotary_base,
          .positions = config.context,
          .scaling = config.rotary_scaling,
          .factor = config.rotary_factor,
          .context = config.rotary_context,
          .low = config.rotary_low,
          .high = config.rotary_high,
          .gain = config.rotary_gain};
}

Decoder decoder_of(const io::ModelConfig& config, int64_t vocabulary, const Family& family,
                   std::string_view norm) {
  check_heads(config, family);
  check_positions(config, family);
  check_windows(config, family);
  const double epsilon = config.norm_epsilon > 0 ? config.norm_epsilon : family.norm_epsilon;
  const int64_t head = config.head_width > 0 ? config.head_width : config.width / config.heads;
  const std::string_view activation =
      config.activation == "auto" ? family.activation : std::string_view(config.activation);
  const bool attention_biases = config.biases == "auto";
  const Embedding::Options embedding{
      .vocabulary = vocabulary,
      .context = config.context,
      .width = config.width,
      .positions = family.rotary_base == 0,
      .scale = family.scaled_embedding
                   ? static_cast<float>(std::sqrt(static_cast<double>(config.width)))
                   : 1.0F,
      .tied = config.tie_embeddings};
  return {.embedding = embedding,
          .block = {.norm = std::string(norm),
                    .norm_epsilon = epsilon,
                    .parallel = is_parallel(config, family),
                    .post_norm = family.post_norm,
                    .attention = {.tokens = config.context,
                                  .width = config.width,
                                  .heads = config.heads,
                                  .kv_heads = config.kv_heads,
                                  .head_width = head,
                                  .blocks = config.layers,
                                  .window = config.window,
                                  .scale = config.attention_scale,
                                  .fused = family.fused,
                                  .bias = family.bias && attention_biases,
                                  .output_bias = family.output_bias && attention_biases,
                                  .rotary = rotary_of(config, family, head),
                                  .head_norm = family.head_norm,
                                  .norm_epsilon = epsilon},
                    .mlp = {.tokens = config.context,
                            .width = config.width,
                            .hidden = config.mlp_width > 0 ? config.mlp_width
                                                           : config.mlp_ratio * config.width,
                            .blocks = config.layers,
                            .activation = activation_by_name(activation),
                            .gated = family.gated,
                            .bias = family.mlp_bias && config.biases != "none"}},
          .head = {.embedding = embedding, .norm = std::string(norm), .norm_epsilon = epsilon},
          .full_every = config.full_every,
          .local_rotary_base =
              config.local_rotary_base > 0 ? config.local_rotary_base : family.local_rotary_base};
}

}  // namespace

TransformerBlock::Options Decoder::block_at(int64_t number) const {
  TransformerBlock::Options options = block;
  Attention::Options& attention = options.attention;
  if (full_every > 0 && (number + 1) % full_every == 0) {
    attention.window = 0;
  }
  if (attention.window > 0 && local_rotary_base > 0) {
    attention.rotary = {.width = attention.rotary.width,
                        .base = local_rotary_base,
                        .positions = attention.rotary.positions};
  }
  return options;
}

Registry<Family> families() { return pointers_into<kFamilies>(); }

Decoder decoder_of(const io::ModelConfig& config, int64_t vocabulary) {
  const Family& family = family_of(config);
  return decoder_of(config, vocabulary, family, family.norm);
}

Decoder gpt_of(const io::ModelConfig& config, int64_t vocabulary) {
  const io::ModelConfig gpt{.layers = config.layers,
                            .heads = config.heads,
                            .width = config.width,
                            .context = config.context,
                            .tie_embeddings = config.tie_embeddings,
                            .mlp_ratio = config.mlp_ratio};
  return decoder_of(gpt, vocabulary, find(families(), "model.family", "gpt2"), config.norm);
}

}  // namespace espalier::model
