#include <algorithm>

#include "src/model/networks/gpt.h"

namespace espalier::model {
namespace {

/// How logits are made, some rows at a time.
struct Chunks {
  int64_t rows;
  int64_t stride;  ///< elements from one row to the next
};

/// Logits of a chunk, fp32, stay within some memory that is small beside the other activations: on
/// the CPU within its cache. A device computes the weight's product, and adds to its gradient, once
/// a chunk: 256 MiB make that rare (GPT-2: 1,280 rows), and rows of whole 128 bytes let it load
/// them in large pieces.
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

}  // namespace

Head::Head(const GptShape& shape)
    : shape_(shape),
      norm_("norm", shape.width),
      linear_(shape.tie_embeddings
                  ? Linear::tied_to("embedding.token", shape.width, shape.vocabulary)
                  : Linear("head", shape.width, shape.vocabulary,
                           {.bias = false, .prunable = false})) {}

std::vector<sparse::ParameterSpec> Head::parameters() const {
  auto all = norm_.parameters();
  for (auto& spec : linear_.parameters()) {
    all.push_back(spec);
  }
  return all;
}

std::vector<sparse::ParameterSpec> Head::borrowed() const {
  return shape_.tie_embeddings
             ? std::vector<sparse::ParameterSpec>{Embedding(shape_).parameters().front()}
             : std::vector<sparse::ParameterSpec>{};
}

void Head::bind(sparse::Store& store, const kernels::Kernels& kernels) {
  norm_.bind(store);
  linear_.bind(store, kernels);
}

/// The gradient of x is complete here, so that nothing but it stays on the tape for the blocks.
Tensor Head::forward(Pass& pass, const Tensor& x) {
  Tensor gradient;
  if (pass.training) {
    gradient = pass.tape.push("residual gradient", DType::fp32, x.shape);
  }
  const Tape::Scope temporaries(pass.tape);
  const LayerNorm::Saved norm = LayerNorm::prepare(pass, x);
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

void Head::loss_chunk(Pass& pass, const Tensor& normed, int64_t first, int64_t rows) {
  const Tape::Scope temporaries(pass.tape);
  const int64_t vocabulary = shape_.vocabulary;
  const Shape shape{rows, chunks_of(vocabulary, pass.stream.arena().on_device()).stride};
  const Tensor input = normed.row_range(first, rows);
  const Tensor logits =
      pass.tape.push("logits of a chunk", DType::fp32, shape).column_range(0, vocabulary);
  linear_.forward(pass, input, logits);
  Tensor dlogits;
  if (pass.training) {
    dlogits = pass.dtype == DType::fp32
                  ? logits
                  : pass.tape.push("logits gradient of a chunk", pass.dtype, shape)
                        .column_range(0, vocabulary);
  }
  const Tensor targets = pass.targets.reshaped(Shape{pass.targets.count(), 1});
  const Tensor losses = pass.losses.reshaped(Shape{pass.losses.count(), 1});
  pass.kernels.cross_entropy(pass.stream,
                             {.logits = logits,
                              .targets = targets.row_range(first, rows).reshaped(Shape{rows}),
                              .losses = losses.row_range(first, rows).reshaped(Shape{rows}),
                              .dlogits = dlogits,
                              .scale = pass.loss_scale});
  if (pass.training) {
    linear_.backward_weight(pass, input, dlogits, pass.accumulate || first > 0);
    linear_.backward_input(pass, dlogits, input);
  }
}

Tensor Head::backward(Pass& pass, const Tensor& /*dy*/) { return pass.tape.saved<Tensor>(this); }

Tensor Head::logits(Pass& pass, const Tensor& x) {
  const Tensor out = pass.tape.push("logits", DType::fp32, Shape{x.rows(), shape_.vocabulary});
  const Tensor normed = pass.tape.push("norm", pass.dtype, x.shape);
  norm_.forward(pass, LayerNorm::prepare(pass, x), normed);
  linear_.forward(pass, normed, out);
  return out;
}

std::vector<std::unique_ptr<Layer>> make_gpt(const GptShape& shape) {
  std::vector<std::unique_ptr<Layer>> layers;
  layers.push_back(std::make_unique<Embedding>(shape));
  for (int64_t block = 0; block < shape.layers; ++block) {
    layers.push_back(std::make_unique<Block>(shape, block));
  }
  layers.push_back(std::make_unique<Head>(shape));
  return layers;
}

}  // namespace espalier::model
