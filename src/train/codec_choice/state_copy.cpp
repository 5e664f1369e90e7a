#include "src/train/codec_choice/state_copy.h"

namespace espalier::train {

StateCopy::StateCopy(sparse::Store& store) : store_(store) {
  keep(store.value());
  keep(store.feedback());
  for (const sparse::Parameter& parameter : store.parameters()) {
    const sparse::OptimizerState state = store.state(parameter);
    keep(state.apart ? state.value : Tensor());
    for (const Tensor& tensor :
         {state.low, state.moment1, state.moment2, state.scale1, state.scale2}) {
      keep(tensor);
    }
    if (parameter.exact_copy()) {
      keep(parameter.dense);
    }
  }
  store.stream().synchronize();  // the caller may change host memory at once
}

void StateCopy::keep(const Tensor& tensor) {
  if (!tensor || tensor.count() == 0) {
    return;
  }
  Arena& arena = tensor.on_device ? store_.arena() : store_.arena().host();
  Buffer copy =
      arena.allocate(Memory::scratch, "state to come back to", tensor.dtype, tensor.shape);
  store_.stream().copy(tensor, copy.tensor());
  kept_.push_back({tensor, std::move(copy)});
}

void StateCopy::restore() {
  for (const Kept& kept : kept_) {
    store_.stream().copy(kept.copy.tensor(), kept.original);
  }
  for (sparse::Parameter& parameter : store_.parameters()) {
    if (parameter.copied() && !parameter.exact_copy()) {
      store_.refresh(parameter);
    }
  }
  store_.stream().synchronize();
}

}  // namespace espalier::train
