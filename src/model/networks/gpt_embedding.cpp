#include "src/model/layers/dropout.h"
#include "src/model/networks/gpt.h"

namespace espalier::model {

std::vector<sparse::ParameterSpec> Embedding::parameters() const {
  constexpr float kDeviation = 0.02F;
  return {{.name = "embedding.token",
           .shape = Shape{shape_.vocabulary, shape_.width},
           .initial = sparse::Initial::normal,
           .deviation = kDeviation,
           .decay = true},
          {.name = "embedding.position",
           .shape = Shape{shape_.context, shape_.width},
           .initial = sparse::Initial::normal,
           .deviation = kDeviation,
           .decay = true}};
}

void Embedding::bind(sparse::Store& store, const kernels::Kernels& /*kernels*/) {
  store_ = &store;
  token_ = &store.find("embedding.token");
  position_ = &store.find("embedding.position");
}

Flow Embedding::output(int64_t samples, DType /*dtype*/) const {
  return shape_.residual_stream(samples);
}

Tensor Embedding::forward(Pass& pass, const Tensor& /*x*/) {
  const Shape shape{pass.inputs.shape[0], pass.inputs.shape[1], shape_.width};
  const Tensor out = pass.tape.push("residual stream", DType::fp32, shape);
  pass.kernels.embedding(
      pass.stream,
      {.tokens = pass.inputs, .token = token_->dense, .position = position_->dense, .x = out});
  apply_dropout(pass, name(), out, out);
  return out;
}

Tensor Embedding::backward(Pass& pass, const Tensor& dy) {
  apply_dropout(pass, name(), dy, dy);
  const Tensor dtoken = store_->full_gradient(*token_);
  const Tensor dposition = store_->full_gradient(*position_);
  if (!pass.accumulate) {
    pass.kernels.fill(pass.stream, {.x = dposition});
    if (!shape_.tie_embeddings || pass.tied_apart) {  // else the head has put its share there
      pass.kernels.fill(pass.stream, {.x = dtoken});
    }
  }
  pass.kernels.embedding_backward(
      pass.stream, {.tokens = pass.inputs, .dx = dy, .dtoken = dtoken, .dposition = dposition});
  return {};
}

}  // namespace espalier::model
