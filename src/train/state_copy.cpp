#include "src/train/state_copy.h"

#include <cstring>

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
}

void StateCopy::keep(const Tensor& tensor) {
  if (!tensor || tensor.count() == 0) {
    return;
  }
  Buffer copy = store_.arena().allocate(Memory::scratch, "state to come back to", tensor.dtype,
                                        Shape{tensor.count()});
  std::memcpy(copy.tensor().data, tensor.data, tensor.bytes());
  kept_.push_back({tensor, std::move(copy)});
}

void StateCopy::restore() {
  for (const Kept& kept : kept_) {
    std::memcpy(kept.original.data, kept.copy.tensor().data, kept.original.bytes());
  }
  for (sparse::Parameter& parameter : store_.parameters()) {
    if (parameter.copied() && !parameter.exact_copy()) {
      store_.refresh(parameter);
    }
  }
}

}  // namespace espalier::train
