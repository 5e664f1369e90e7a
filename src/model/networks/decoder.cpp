// Decoder-only transformers: kind "decoder", of any family (families.h), and kind "gpt". Layers:
// embedding, blocks, head. Letters: B sequences, T context, C width, V vocabulary, R = B T rows.
//
//   embedding   x = scale token[tokens] (+ position)
//   block       x += attention(norm1(x));  x += mlp(norm2(x)): src/model/layers/transformer.h;
//               blocks may differ in their windows (model.full_every)
//   head        losses = cross-entropy(norm(x) Wᵀ)
//
// The residual stream x is fp32, products run in the compute type. Dropout acts on the embedding
// and in the blocks. Initial weights: normal 0.02.
#include <algorithm>
#include <array>
#include <cmath>

#include "src/model/networks/families.h"
#include "src/model/networks/registry.h"

namespace espalier::model {
namespace {

constexpr std::array<std::string_view, 3> kTextKinds{"bytes", "chars", "tokens"};

using DecoderOf = Decoder (*)(const io::ModelConfig& config, int64_t vocabulary);

template <DecoderOf kOf>
std::unique_ptr<Layer> decoder_layer(const io::ModelConfig& config, const ProblemShape& problem,
                                     size_t number) {
  const Decoder decoder = kOf(config, problem.classes);
  if (number == 0) {
    return std::make_unique<Embedding>(decoder.embedding);
  }
  const auto block = static_cast<int64_t>(number) - 1;
  if (block < config.layers) {
    return std::make_unique<TransformerBlock>(fmt::format("blocks.{}", block),
                                              decoder.block_at(block));
  }
  return std::make_unique<Head>(decoder.head);
}

size_t decoder_layers(const io::ModelConfig& config) {
  return static_cast<size_t>(config.layers) + 2;
}

ProblemShape decoder_problem(const io::ModelConfig& config, const MatrixShape& shape) {
  return {.classes = shape(std::string(kTokenEmbedding))[0],
          .features = config.context,
          .rows = config.context,
          .input_dtype = DType::int32};
}

std::string_view decoder_tied(const io::ModelConfig& config) {
  return config.tie_embeddings ? kTokenEmbedding : std::string_view();
}

Settings gpt_identity(const io::ModelConfig& config) {
  return {{"layers", fmt::format("{}", config.layers)},
          {"heads", fmt::format("{}", config.heads)},
          {"width", fmt::format("{}", config.width)},
          {"context", fmt::format("{}", config.context)},
          {"norm", config.norm},
          {"tie_embeddings", fmt::format("{}", config.tie_embeddings)}};
}

/// With the numbers that zeros stand for. The context matters where positions are learned, whose
/// shape determines it, and where scaled rotary positions depend on it.
Settings decoder_identity(const io::ModelConfig& config) {
  const Decoder decoder = decoder_of(config, 1);
  const Attention::Options& attention = decoder.block.attention;
  const RotaryOptions& rotary = attention.rotary;
  const bool scaled = rotary.width > 0 && rotary.scaling != "none";
  const int64_t context = rotary.context > 0 ? rotary.context : rotary.positions;
  const auto number = [](auto value) { return fmt::format("{}", value); };
  return {{"family", config.family},
          {"layers", number(config.layers)},
          {"heads", number(attention.heads)},
          {"kv_heads", number(attention.kv_heads > 0 ? attention.kv_heads : attention.heads)},
          {"head_width", number(attention.head_width)},
          {"width", number(config.width)},
          {"tie_embeddings", number(config.tie_embeddings)},
          {"family:activation", std::string(name_of(decoder.block.mlp.activation))},
          {"family:residual", decoder.residual()},
          {"family:biases", decoder.biases()},
          {"family:norm_epsilon", number(decoder.block.norm_epsilon)},
          {"window", number(attention.window)},
          {"full_every", number(decoder.full_every)},
          {"family:attention_scale", number(attention.score_scale())},
          {"rotary:base", number(rotary.width > 0 ? rotary.base : 0)},
          {"rotary:local_base", number(attention.window > 0 ? decoder.local_rotary_base : 0)},
          {"rotary:share",
           number(static_cast<double>(rotary.width) / static_cast<double>(attention.head_width))},
          {"rotary", rotary.scaling},
          {"rotary:factor", number(scaled ? rotary.factor : 1)},
          {"rotary:context", number(scaled && rotary.scaling != "linear" ? context : 0)},
          {"context", number(rotary.scaling == "dynamic" ? rotary.positions : 0)},
          {"rotary:low", number(scaled ? rotary.low : 1)},
          {"rotary:high", number(scaled ? rotary.high : 0)},
          {"rotary:gain", number(scaled ? rotary.gain : 0)}};
}

/// More or fewer heads of the same width, if that is near enough; else as many of another, even
/// width. Heads of keys and values keep their share of the heads.
std::optional<io::ModelConfig> scaled_decoder(const io::ModelConfig& config, double share) {
  io::ModelConfig scaled = config;
  const auto wanted = share * static_cast<double>(config.width);
  const auto rounded = [](double number) { return std::max<int64_t>(1, std::llround(number)); };
  const int64_t group = config.kv_heads > 1 ? config.heads / config.kv_heads : 1;
  scaled.heads = group * rounded(share * static_cast<double>(config.heads / group));
  scaled.kv_heads = config.kv_heads > 1 ? scaled.heads / group : config.kv_heads;
  scaled.width = config.width * scaled.heads / config.heads;
  constexpr double kNear = 1.0 / 16;  // of the width
  if (config.width * scaled.heads % config.heads != 0 ||
      std::abs(static_cast<double>(scaled.width) - wanted) >
          kNear * static_cast<double>(config.width)) {
    scaled = config;
    const int64_t unit = 2 * config.heads;
    scaled.width = unit * rounded(wanted / static_cast<double>(unit));
    if (config.head_width > 0) {
      scaled.head_width = 2 * rounded(share * static_cast<double>(config.head_width) / 2);
    }
  }
  if (config.mlp_width > 0) {
    const double by = static_cast<double>(scaled.width) / static_cast<double>(config.width);
    scaled.mlp_width = rounded(by * static_cast<double>(config.mlp_width));
  }
  const bool changes = share < 1 ? scaled.width < config.width : scaled.width > config.width;
  return changes ? std::optional(scaled) : std::nullopt;
}

/// "KIND, 4 layers, ...".
std::string decoder_text(std::string_view kind, const io::ModelConfig& config, int64_t classes) {
  return fmt::format("{}, {} layers, {} heads, width {}, context {}, vocabulary {}", kind,
                     config.layers, config.heads, config.width, config.context, classes);
}

/// Keys of kind "decoder" beside "gpt".
void check_gpt(const io::ModelConfig& config) {
  const io::ModelConfig defaults;
  const auto unused = [](bool is_default, std::string_view key) {
    check(is_default,
          "model.{} is for model.kind = \"decoder\", and the kind is \"gpt\"; remove the key, or "
          "set model.kind = \"decoder\" and a model.family",
          key);
  };
  unused(config.kv_heads == defaults.kv_heads, "kv_heads");
  unused(config.head_width == defaults.head_width, "head_width");
  unused(config.mlp_width == defaults.mlp_width, "mlp_width");
  unused(config.family == defaults.family && config.activation == defaults.activation &&
             config.residual == defaults.residual && config.biases == defaults.biases &&
             config.norm_epsilon == defaults.norm_epsilon &&
             config.attention_scale == defaults.attention_scale,
         "family");
  unused(config.window == defaults.window, "window");
  unused(config.full_every == defaults.full_every, "full_every");
  unused(config.rotary_base == defaults.rotary_base &&
             config.local_rotary_base == defaults.local_rotary_base &&
             config.rotary_share == defaults.rotary_share &&
             config.rotary_scaling == defaults.rotary_scaling,
         "rotary");
  gpt_of(config, 1);
}

}  // namespace

extern const NetworkKind kGpt, kDecoder;
const NetworkKind kGpt{.name = "gpt",
                       .help = "decoder-only transformer (GPT-2); reads tokens",
                       .data_kinds = kTextKinds,
                       .input_dtype = DType::int32,
                       .check = check_gpt,
                       .layer_count = decoder_layers,
                       .make_layer = decoder_layer<gpt_of>,
                       .problem_of = decoder_problem,
                       .identity = gpt_identity,
                       .tied_parameter = decoder_tied,
                       .scaled = scaled_decoder,
                       .describe = [](const io::ModelConfig& config, int64_t classes) {
                         return decoder_text("gpt", config, classes);
                       }};
const NetworkKind kDecoder{
    .name = "decoder",
    .help = "decoder-only transformer of model.family; reads tokens",
    .data_kinds = kTextKinds,
    .input_dtype = DType::int32,
    .check = [](const io::ModelConfig& config) { decoder_of(config, 1); },
    .layer_count = decoder_layers,
    .make_layer = decoder_layer<decoder_of>,
    .problem_of = decoder_problem,
    .identity = decoder_identity,
    .tied_parameter = decoder_tied,
    .scaled = scaled_decoder,
    .describe = [](const io::ModelConfig& config,
                   int64_t classes) { return decoder_text(config.family, config, classes); }};

}  // namespace espalier::model
