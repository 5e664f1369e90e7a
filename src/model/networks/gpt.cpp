// GPT-2's layers: embedding, pre-norm blocks, head. Letters: B sequences, T context, C width, H
// heads, V vocabulary, R = B T rows. Source: Radford et al. 2019; layout as in nanoGPT.
//
//   embedding   x = token[tokens] + position
//   block       x += projection(attention(qkv(norm1(x))));  x += contract(gelu(expand(norm2(x))))
//   head        losses = cross-entropy(norm(x) Wᵀ), by chunks of rows: full logits never exist
//
// The residual stream x is fp32, products run in the compute type. Dropout acts on the embedding
// and on both branches (not inside attention). Initial weights: normal 0.02; projections into the
// residual stream 0.02 / sqrt(2 layers).
//
// A block keeps for backward, in bytes a row (e: bytes of the compute type, ratio 4):
//   none       8 C residual streams + 14 e C: norm outputs, qkv, attention, MLP around gelu
//   selective  8 C + 8 e C: norm outputs and gelu are computed again
//   full       4 C: its input; the rest is there for one block at a time
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "src/model/layers/dropout.h"
#include "src/model/layers/linear.h"
#include "src/model/layers/norm.h"
#include "src/model/networks/registry.h"

namespace espalier::model {
namespace {

constexpr std::string_view kToken = "embedding.token";

struct GptShape {
  int64_t layers, heads, width, context, vocabulary, mlp_ratio;
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

constexpr auto kGelu = kernels::Activation::gelu;

/// Scope of tensors that are cheap to compute again: a training pass without recompute keeps them,
/// any other drops them at the end of the scope.
class Cheap {
 public:
  explicit Cheap(Pass& pass) {
    if (!pass.training || pass.recompute != Recompute::none) {
      drop_.emplace(pass.tape);
    }
  }
  /// The tensor to save for `pushed`; empty: recomputed.
  Tensor kept(const Tensor& pushed) const { return drop_ ? Tensor() : pushed; }

 private:
  std::optional<Tape::Scope> drop_;
};

Linear::Options into_residual(const GptShape& shape) {
  return {.deviation = 0.02F / std::sqrt(2.0F * static_cast<float>(shape.layers)),
          .width = shape.width,
          .flow = {.ends_branch = true}};
}

class Block final : public Layer {
 public:
  Block(const GptShape& shape, int64_t number)
      : name_(fmt::format("blocks.{}", number)),
        shape_(shape),
        norm1_(shape.norm, name_ + ".norm1", shape.width),
        norm2_(shape.norm, name_ + ".norm2", shape.width),
        qkv_(name_ + ".attention.qkv", shape.width, 3 * shape.width,
             {.width = shape.width, .flow = {.begins_branch = true, .parts = 3}}),
        projection_(name_ + ".attention.projection", shape.width, shape.width,
                    into_residual(shape)),
        expand_(name_ + ".mlp.expand", shape.width, shape.mlp_ratio * shape.width,
                {.width = shape.width, .flow = {.begins_branch = true}}),
        contract_(name_ + ".mlp.contract", shape.mlp_ratio * shape.width, shape.width,
                  into_residual(shape)) {}

  std::string_view name() const override { return name_; }
  std::vector<sparse::ParameterSpec> parameters() const override {
    std::vector<sparse::ParameterSpec> all;
    auto add = [&all](std::vector<sparse::ParameterSpec> some) {
      all.insert(all.end(), some.begin(), some.end());
    };
    add(norm1_.parameters());
    add(qkv_.parameters());
    add(projection_.parameters());
    add(norm2_.parameters());
    add(expand_.parameters());
    add(contract_.parameters());
    return all;
  }

  void bind(sparse::Store& store, const kernels::Kernels& kernels) override {
    norm1_.bind(store);
    norm2_.bind(store);
    for (Linear* linear : {&qkv_, &projection_, &expand_, &contract_}) {
      linear->bind(store, kernels);
    }
  }

  TensorSpec output(int64_t samples, DType /*dtype*/) const override {
    return shape_.residual_stream(samples);
  }

  Tensor forward(Pass& pass, const Tensor& x) override {
    const Tensor out = pass.tape.push("residual stream", DType::fp32, x.shape);
    std::optional<Tape::Scope> temporaries;
    if (!pass.training) {
      temporaries.emplace(pass.tape);
    }
    const Saved saved = run(pass, x, out);
    if (pass.training) {
      pass.tape.save(this, saved);
    }
    return out;
  }

  // Reuses memory: a tensor that is no longer needed becomes the next one.
  Tensor backward(Pass& pass, const Tensor& dy) override {
    const auto& saved = pass.tape.saved<Saved>(this);
    const Tape::Scope temporaries(pass.tape);
    const Tensor narrow = pass.tape.push("branch gradient", pass.dtype, dy.shape);
    if (has_copy(pass)) {
      pass.kernels.cast(pass.stream, {.x = dy, .y = narrow});
    }
    mlp_backward(pass, saved, dy, narrow);
    attention_backward(pass, saved, dy, narrow);
    return dy;
  }

  bool can_replay() const override { return true; }
  void replay(Pass& pass, const Tensor& x) override { pass.tape.save(this, run(pass, x, {})); }

 private:
  struct Saved {
    Norm::Saved norm1, norm2;
    Tensor qkv, attention, lse;  ///< [B, T, 3C], [B, T, C], [B, H, T]
    Tensor expanded;             ///< [R, ratio C] before GELU
    Tensor normed1, normed2;     ///< outputs of the norms; not with recompute
    Tensor activated;            ///< [R, ratio C] after GELU; not with recompute
  };
  /// All but the last product, which needs the output's memory.
  Saved run(Pass& pass, const Tensor& x, const Tensor& out) {
    Saved saved;
    const Tensor middle = pass.tape.push("residual stream", DType::fp32, x.shape);
    attention_forward(pass, x, middle, saved);
    mlp_forward(pass, middle, out, saved);
    return saved;
  }

  void attention_forward(Pass& pass, const Tensor& x, const Tensor& middle, Saved& saved) {
    const int64_t sequences = x.shape[0];
    const int64_t tokens = x.shape[1];
    saved.norm1 = norm1_.prepare(pass, x);
    saved.qkv = pass.tape.push("attention qkv", pass.dtype, Shape{sequences, tokens, qkv_.out()});
    saved.attention = pass.tape.push("attention out", pass.dtype, x.shape);
    saved.lse =
        pass.tape.push("attention lse", DType::fp32, Shape{sequences, shape_.heads, tokens});
    {
      const Cheap cheap(pass);
      const Tensor normed = pass.tape.push("norm", pass.dtype, x.shape);
      norm1_.forward(pass, saved.norm1, normed);
      qkv_.forward(pass, {.x = normed, .y = saved.qkv});
      saved.normed1 = cheap.kept(normed);
    }
    pass.kernels.attention(pass.stream, {.qkv = saved.qkv,
                                         .out = saved.attention,
                                         .lse = saved.lse,
                                         .heads = static_cast<int>(shape_.heads)});
    add_branch(pass, projection_, saved.attention, x, middle);
  }

  void mlp_forward(Pass& pass, const Tensor& middle, const Tensor& out, Saved& saved) {
    const Shape wide{middle.rows(), expand_.out()};
    saved.norm2 = norm2_.prepare(pass, middle);
    saved.expanded = pass.tape.push("mlp expanded", pass.dtype, wide);
    const Cheap cheap(pass);
    const Tensor normed = pass.tape.push("norm", pass.dtype, middle.shape);
    norm2_.forward(pass, saved.norm2, normed);
    saved.normed2 = cheap.kept(normed);
    if (!out) {  // a replay: backward computes the rest
      expand_.forward(pass, {.x = normed, .y = saved.expanded});
      return;
    }
    const Tensor activated = pass.tape.push("mlp activated", pass.dtype, wide);
    expand_.forward(
        pass, {.x = normed, .y = saved.expanded, .activation = kGelu, .activated = activated});
    saved.activated = cheap.kept(activated);
    add_branch(pass, contract_, activated, middle, out);
  }

  /// Backward of a branch; both add to `gradient`. With has_copy, `narrow` holds a copy of
  /// `gradient` in the compute type, and mlp_backward, which runs first, updates it for
  /// attention_backward.
  void mlp_backward(Pass& pass, const Saved& saved, const Tensor& gradient, const Tensor& narrow) {
    const Tape::Scope temporaries(pass.tape);
    const Tensor dout = branch_gradient(pass, contract_, gradient, narrow);
    Tensor wide = saved.activated;
    if (!wide) {
      wide = pass.tape.push("mlp activated", pass.dtype, saved.expanded.shape);
      pass.kernels.activation(pass.stream, {.kind = kGelu, .x = saved.expanded, .y = wide});
    }
    contract_.backward_weight(pass, wide, dout, pass.accumulate);
    contract_.backward_input(
        pass, {.dy = dout, .dx = wide, .activation = kGelu, .preactivation = saved.expanded});
    Tensor normed = saved.normed2;
    if (!normed) {
      normed = narrow;
      norm2_.forward(pass, saved.norm2, normed);
    }
    expand_.backward_weight(pass, normed, wide, pass.accumulate);
    expand_.backward_input(pass, {.dy = wide, .dx = narrow});
    norm2_.backward(pass, saved.norm2, narrow, gradient, has_copy(pass) ? narrow : Tensor());
  }

  void attention_backward(Pass& pass, const Saved& saved, const Tensor& gradient,
                          const Tensor& narrow) {
    const Tape::Scope temporaries(pass.tape);
    const Tensor dout = branch_gradient(pass, projection_, gradient, narrow);
    const Tensor dattention = pass.tape.push("attention gradient", pass.dtype, gradient.shape);
    projection_.backward_input(pass, {.dy = dout, .dx = dattention});
    projection_.backward_weight(pass, saved.attention, dout, pass.accumulate);
    const Tensor dqkv = pass.tape.push("qkv gradient", pass.dtype, saved.qkv.shape);
    pass.kernels.attention_backward(pass.stream, {.qkv = saved.qkv,
                                                  .out = saved.attention,
                                                  .lse = saved.lse,
                                                  .dout = dattention,
                                                  .dqkv = dqkv,
                                                  .heads = static_cast<int>(shape_.heads)});
    Tensor normed = saved.normed1;
    if (!normed) {
      normed = narrow;
      norm1_.forward(pass, saved.norm1, normed);
    }
    qkv_.backward_weight(pass, normed, dqkv, pass.accumulate);
    qkv_.backward_input(pass, {.dy = dqkv, .dx = narrow});
    norm1_.backward(pass, saved.norm1, narrow, gradient);
  }

  /// out = x + dropout(linear(branch))
  void add_branch(Pass& pass, Linear& linear, const Tensor& branch, const Tensor& x,
                  const Tensor& out) {
    if (drops(pass)) {
      linear.forward(pass, {.x = branch, .y = out});
      apply_dropout(pass, linear.name(), out, out);
      pass.kernels.cast(pass.stream, {.x = x, .y = out, .accumulate = true});
    } else {
      linear.forward(pass, {.x = branch, .y = out, .addend = x});
    }
  }

  /// Whether the gradient of a branch differs from the residual stream's: rounded, or dropped out.
  static bool has_copy(const Pass& pass) { return pass.dtype != DType::fp32 || drops(pass); }

  /// Gradient of the output of the branch's linear map, in `narrow` where it differs.
  static Tensor branch_gradient(Pass& pass, const Linear& linear, const Tensor& gradient,
                                const Tensor& narrow) {
    if (!has_copy(pass)) {
      return gradient;
    }
    apply_dropout(pass, linear.name(), narrow, narrow);
    return narrow;
  }

  std::string name_;
  GptShape shape_;
  Norm norm1_, norm2_;
  Linear qkv_, projection_, expand_, contract_;
};

/// Logits are computed for some rows at a time.
struct Chunks {
  int64_t rows;
  int64_t stride;  ///< elements from one row to the next
};

/// A chunk's logits, fp32, are small beside the other activations. CPU: 1 MiB, within the cache.
/// Device: 256 MiB, so that the products with the weight are few (GPT-2: 1,280 rows a chunk), in
/// rows of whole 128 bytes, which load in large pieces.
Chunks chunks_of(int64_t vocabulary, bool on_device) {
  if (!on_device) {
    constexpr int64_t kBytes = int64_t{1} << 20U;
    return {.rows = std::max<int64_t>(kBytes / (vocabulary * 4), 32), .stride = vocabulary};
  }
  constexpr int64_t kBytes = int64_t{256} << 20U;
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
    for (int64_t first = 0; first < x.rows(); first += chunk) {
      loss_chunk(pass, normed, first, std::min(chunk, x.rows() - first));
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
  /// Losses of some rows; in training their gradient takes the place of the norm's output.
  void loss_chunk(Pass& pass, const Tensor& normed, int64_t first, int64_t rows) {
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
      linear_.backward_weight(pass, input, dlogits, pass.accumulate || first > 0);
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
  const GptShape shape{.layers = config.layers,
                       .heads = config.heads,
                       .width = config.width,
                       .context = config.context,
                       .vocabulary = problem.classes,
                       .mlp_ratio = config.mlp_ratio,
                       .tie_embeddings = config.tie_embeddings,
                       .norm = config.norm};
  if (number == 0) {
    return std::make_unique<Embedding>(shape);
  }
  const auto block = static_cast<int64_t>(number) - 1;
  if (block < config.layers) {
    return std::make_unique<Block>(shape, block);
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
