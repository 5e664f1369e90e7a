#include "src/model/layers/embedding.h"

#include "src/model/key_value_cache.h"
#include "src/model/layers/dropout.h"

namespace espalier::model {
namespace {

constexpr std::string_view kPositionEmbedding = "embedding.position";

}  // namespace

std::vector<sparse::ParameterSpec> Embedding::parameters() const {
  const auto rows = [&](std::string_view name, int64_t count) {
    return sparse::ParameterSpec{.name = std::string(name),
                                 .shape = Shape{count, options_.width},
                                 .initial = sparse::Initial::normal,
                                 .deviation = 0.02F,
                                 .decay = true,
                                 .width = options_.width};
  };
  std::vector<sparse::ParameterSpec> specs{rows(kTokenEmbedding, options_.vocabulary)};
  if (options_.positions) {
    specs.push_back(rows(kPositionEmbedding, options_.context));
  }
  return specs;
}

void Embedding::bind(sparse::Store& store, const kernels::Kernels& /*kernels*/) {
  store_ = &store;
  token_ = &store.find(kTokenEmbedding);
  position_ = options_.positions ? &store.find(kPositionEmbedding) : nullptr;
}

TensorSpec Embedding::output(int64_t samples, DType /*dtype*/) const {
  return {.dtype = DType::fp32, .shape = Shape{samples, options_.context, options_.width}};
}

Tensor Embedding::forward(Pass& pass, const Tensor& /*x*/) {
  const Shape shape{pass.inputs.shape[0], pass.inputs.shape[1], options_.width};
  const Tensor out = pass.tape.push("residual stream", DType::fp32, shape);
  pass.kernels.embedding(pass.stream,
                         {.tokens = pass.inputs,
                          .token = token_->dense,
                          .position = position_ != nullptr ? position_->dense : Tensor(),
                          .x = out,
                          .scale = options_.scale,
                          .positions = positions_of(pass.cached)});
  apply_dropout(pass, name(), out, out);
  return out;
}

Tensor Embedding::backward(Pass& pass, const Tensor& dy) {
  apply_dropout(pass, name(), dy, dy);
  const Tensor dtoken = store_->full_gradient(*token_);
  const Tensor dposition = position_ != nullptr ? store_->full_gradient(*position_) : Tensor();
  if (!pass.accumulate) {
    if (dposition) {
      pass.kernels.fill(pass.stream, {.x = dposition});
    }
    if (!options_.tied || pass.tied_head_on_other_stage) {  // else the head has put its share there
      pass.kernels.fill(pass.stream, {.x = dtoken});
    }
  }
  pass.kernels.embedding_backward(pass.stream, {.tokens = pass.inputs,
                                                .dx = dy,
                                                .dtoken = dtoken,
                                                .dposition = dposition,
                                                .scale = options_.scale});
  return {};
}

}  // namespace espalier::model
