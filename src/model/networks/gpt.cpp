// GPT-2's layers: embedding, pre-norm blocks, head. Letters: B sequences, T context, C width, H
// heads, V vocabulary, R = B T rows. Source: Radford et al. 2019; layout as in nanoGPT.
//
//   embedding   x = token[tokens] + position
//   block       x += projection(attention(qkv(norm1(x))));  x += contract(gelu(expand(norm2(x))))
//   head        losses = cross-entropy(norm(x) Wᵀ), by chunks of rows: full logits never exist
//
// The residual stream x is fp32, products run in the compute type. Dropout acts on the embedding
// and in the blocks. Initial weights: normal 0.02. Blocks: src/model/layers/transformer.h.
#include <algorithm>
#include <array>

#include "src/model/layers/dropout.h"
#include "src/model/layers/linear.h"
#include "src/model/layers/norm.h"
#include "src/model/layers/transformer.h"
#include "src/model/networks/registry.h"

namespace espalier::model {
namespace {

constexpr std::string_view kToken = "embedding.token";

struct GptShape {
  int64_t width, context, vocabulary;
  bool tie_embeddings;
  std::string norm;

  /// Between its layers.
  TensorSpec residual_stream(int64_t samples) const {
    return {.dtype = DType::fp32, .shape = Shape{samples, context, width}};
  }
};

class Embedding final : public Layer {
 public:
  explicit Embedding(const GptShape& shape) : shape_(shape) {}
  std::string_view name() const override { return "embedding"; }
  std::vector<sparse::ParameterSpec> parameters() const override {
    constexpr float kDeviation = 0.02F;
    return {{.name = std::string(kToken),
             .shape = Shape{shape_.vocabulary, shape_.width},
             .initial = sparse::Initial::normal,
             .deviation = kDeviation,
             .decay = true,
             .width = shape_.width},
            {.name = "embedding.position",
             .shape = Shape{shape_.context, shape_.width},
             .initial = sparse::Initial::normal,
             .deviation = kDeviation,
             .decay = true,
             .width = shape_.width}};
  }

  void bind(sparse::Store& store, const kernels::Kernels& /*kernels*/) override {
    store_ = &store;
    token_ = &store.find(kToken);
    position_ = &store.find("embedding.position");
  }

  TensorSpec output(int64_t samples, DType /*dtype*/) const override {
    return shape_.residual_stream(samples);
  }

  Tensor forward(Pass& pass, const Tensor& /*x*/) override {
    const Shape shape{pass.inputs.shape[0], pass.inputs.shape[1], shape_.width};
    const Tensor out = pass.tape.push("residual stream", DType::fp32, shape);
    pass.kernels.embedding(
        pass.stream,
        {.tokens = pass.inputs, .token = token_->dense, .position = position_->dense, .x = out});
    apply_dropout(pass, name(), out, out);
    return out;
  }

  Tensor backward(Pass& pass, const Tensor& dy) override {
    apply_dropout(pass, name(), dy, dy);
    const Tensor dtoken = store_->full_gradient(*token_);
    const Tensor dposition = store_->full_gradient(*position_);
    if (!pass.accumulate) {
      pass.kernels.fill(pass.stream, {.x = dposition});
      if (!shape_.tie_embeddings ||
          pass.tied_head_on_other_stage) {  // else the head has put its share there
        pass.kernels.fill(pass.stream, {.x = dtoken});
      }
    }
    pass.kernels.embedding_backward(
        pass.stream, {.tokens = pass.inputs, .dx = dy, .dtoken = dtoken, .dposition = dposition});
    return {};
  }

 private:
  GptShape shape_;
  sparse::Store* store_ = nullptr;
  sparse::Parameter* token_ = nullptr;
  sparse::Parameter* position_ = nullptr;
};

/// Logits are computed for some rows at a time.
struct Chunks {
  int64_t rows;
  int64_t stride;  ///< elements from one row to the next
};

/// A chunk's logits, fp32, are small beside the other activations. CPU: 1 MiB, within the cache, or
/// 256 rows: each chunk reads and writes the whole fp32 gradient of the weight. Device: 1 GiB
/// (GPT-2: 5,248 rows), for the same reason, in rows of whole 128 bytes, which load in large
/// pieces.
Chunks chunks_of(int64_t vocabulary, bool on_device) {
  if (!on_device) {
    constexpr int64_t kBytes = int64_t{1} << 20U;
    constexpr int64_t kRows = 256;
    return {.rows = std::max(kBytes / (vocabulary * 4), kRows), .stride = vocabulary};
  }
  constexpr int64_t kBytes = int64_t{1} << 30U;
  constexpr int64_t kColumns = 64;
  constexpr int64_t kRows = 128;
  const int64_t stride = (vocabulary + kColumns - 1) / kColumns * kColumns;
  return {.rows = std::max<int64_t>(kBytes / (stride * 4) / kRows, 1) * kRows, .stride = stride};
}

class Head final : public Layer {
 public:
  explicit Head(const GptShape& shape)
      : shape_(shape),
        norm_(shape.norm, "norm", shape.width, sparse::Scaling::logits),
        linear_(
            shape.tie_embeddings
                ? Linear::tied_to(std::string(kToken), shape.width, shape.vocabulary)
                : Linear("head", shape.width, shape.vocabulary,
                         {.bias = false, .prunable = false, .scaling = sparse::Scaling::base})) {}

  std::string_view name() const override { return "head"; }
  std::vector<sparse::ParameterSpec> parameters() const override {
    auto all = norm_.parameters();
    for (auto& spec : linear_.parameters()) {
      all.push_back(spec);
    }
    return all;
  }

  /// The token embedding, where it is tied.
  std::vector<sparse::ParameterSpec> borrowed() const override {
    return shape_.tie_embeddings
               ? std::vector<sparse::ParameterSpec>{Embedding(shape_).parameters().front()}
               : std::vector<sparse::ParameterSpec>{};
  }

  void bind(sparse::Store& store, const kernels::Kernels& kernels) override {
    norm_.bind(store);
    linear_.bind(store, kernels);
  }

  /// Computes the gradient of x too, so that only that stays on the tape while the blocks run.
  Tensor forward(Pass& pass, const Tensor& x) override {
    Tensor gradient;
    if (pass.training) {
      gradient = pass.tape.push("residual gradient", DType::fp32, x.shape);
    }
    const Tape::Scope temporaries(pass.tape);
    const Norm::Saved norm = norm_.prepare(pass, x);
    const Tensor normed = pass.tape.push("norm", pass.dtype, x.shape);
    norm_.forward(pass, norm, normed);
    const int64_t chunk = chunks_of(shape_.vocabulary, pass.stream.arena().on_device()).rows;
    const auto all_chunks = [&](const Tensor& sum) {
      for (int64_t first = 0; first < x.rows(); first += chunk) {
        loss_chunk(pass, normed, first, std::min(chunk, x.rows() - first), sum);
      }
    };
    if (pass.training && pass.dtype != DType::fp32 && x.rows() > chunk) {
      // Each addition to a 16-bit gradient rounds it: chunks are added in fp32, and rounded once.
      linear_.weight().accumulate_computed(pass.stream, pass.accumulate, all_chunks);
    } else {
      all_chunks({});
    }
    if (pass.training) {
      pass.kernels.fill(pass.stream, {.x = gradient});
      norm_.backward(pass, norm, normed, gradient);
      pass.tape.save(this, gradient);
    }
    return {};
  }

  Tensor backward(Pass& pass, const Tensor& /*dy*/) override {
    return pass.tape.saved<Tensor>(this);
  }

  Tensor logits(Pass& pass, const Tensor& x) override {
    const Tensor out = pass.tape.push("logits", DType::fp32, Shape{x.rows(), shape_.vocabulary});
    const Tensor normed = pass.tape.push("norm", pass.dtype, x.shape);
    norm_.forward(pass, norm_.prepare(pass, x), normed);
    linear_.forward(pass, {.x = normed, .y = out});
    return out;
  }

 private:
  /// Losses of some rows; in training their gradient takes the place of the norm's output. The
  /// weight's gradient goes to `sum`, fp32, or, if that is empty, to the store.
  void loss_chunk(Pass& pass, const Tensor& normed, int64_t first, int64_t rows,
                  const Tensor& sum) {
    const Tape::Scope temporaries(pass.tape);
    const int64_t vocabulary = shape_.vocabulary;
    const Shape shape{rows, chunks_of(vocabulary, pass.stream.arena().on_device()).stride};
    const Tensor input = normed.row_range(first, rows);
    const Tensor logits =
        pass.tape.push("logits of a chunk", DType::fp32, shape).column_range(0, vocabulary);
    linear_.forward(pass, {.x = input, .y = logits});
    Tensor dlogits;
    if (pass.training) {
      dlogits = pass.dtype == DType::fp32
                    ? logits
                    : pass.tape.push("logits gradient of a chunk", pass.dtype, shape)
                          .column_range(0, vocabulary);
    }
    compute_losses(pass, first, logits, dlogits);
    if (pass.training) {
      if (sum) {
        pass.kernels.gemm(
            pass.stream,
            {.a = dlogits, .b = input, .c = sum, .transpose_a = true, .accumulate = first > 0});
      } else {
        linear_.backward_weight(pass, input, dlogits, pass.accumulate || first > 0);
      }
      linear_.backward_input(pass, {.dy = dlogits, .dx = input});
    }
  }

  GptShape shape_;
  Norm norm_;
  Linear linear_;
};

// The registry's entry

void check_shape(const io::ModelConfig& config) {
  check(config.width % config.heads == 0,
        "model.width = {} is not divisible by model.heads = {}; choose a width "
        "that is a multiple",
        config.width, config.heads);
}

std::unique_ptr<Layer> make_layer(const io::ModelConfig& config, const ProblemShape& problem,
                                  size_t number) {
  const GptShape shape{.width = config.width,
                       .context = config.context,
                       .vocabulary = problem.classes,
                       .tie_embeddings = config.tie_embeddings,
                       .norm = config.norm};
  if (number == 0) {
    return std::make_unique<Embedding>(shape);
  }
  const auto block = static_cast<int64_t>(number) - 1;
  if (block < config.layers) {
    return std::make_unique<TransformerBlock>(
        fmt::format("blocks.{}", block), TransformerBlock::Options{.tokens = config.context,
                                                                   .width = config.width,
                                                                   .heads = config.heads,
                                                                   .mlp_ratio = config.mlp_ratio,
                                                                   .blocks = config.layers,
                                                                   .norm = config.norm});
  }
  return std::make_unique<Head>(shape);
}

ProblemShape problem_of(const io::ModelConfig& config, const MatrixShape& shape) {
  return {.classes = shape(std::string(kToken))[0],
          .features = config.context,
          .rows = config.context,
          .input_dtype = DType::int32};
}

Settings identity(const io::ModelConfig& config) {
  return {{"layers", fmt::format("{}", config.layers)},
          {"heads", fmt::format("{}", config.heads)},
          {"width", fmt::format("{}", config.width)},
          {"context", fmt::format("{}", config.context)},
          {"norm", config.norm},
          {"tie_embeddings", fmt::format("{}", config.tie_embeddings)}};
}

std::string describe(const io::ModelConfig& config, int64_t classes) {
  return fmt::format("gpt, {} layers, {} heads, width {}, context {}, vocabulary {}", config.layers,
                     config.heads, config.width, config.context, classes);
}

constexpr std::array<std::string_view, 3> kDataKinds{"bytes", "chars", "tokens"};

}  // namespace

extern const NetworkKind kGpt;
const NetworkKind kGpt{
    .name = "gpt",
    .help = "decoder-only transformer (GPT-2); reads tokens",
    .data_kinds = kDataKinds,
    .input_dtype = DType::int32,
    .check = check_shape,
    .layer_count =
        [](const io::ModelConfig& config) { return static_cast<size_t>(config.layers) + 2; },
    .make_layer = make_layer,
    .problem_of = problem_of,
    .identity = identity,
    .tied_parameter =
        [](const io::ModelConfig& config) {
          return config.tie_embeddings ? kToken : std::string_view();
        },
    .describe = describe};

}  // namespace espalier::model
