#include "src/train/masks/saved_layout.h"

namespace espalier::train {

size_t SavedLayout::bytes() const {
  const auto states = static_cast<size_t>(1 + moments + pruning + history);  // 1: the master copy
  return static_cast<size_t>(nnz) *
             (size_of(static_cast<DType>(dtype)) + states * size_of(DType::fp32)) +
         static_cast<size_t>(index_bytes);
}

SavedLayout saved_layout(const sparse::Store& store, const sparse::Parameter& parameter,
                         bool history) {
  const bool vector = parameter.spec.shape.rank() == 1;
  return {.nnz = parameter.kept(),
          .moments = store.options().moments,
          .pruning = store.pruning_arrays(parameter),
          .dtype = static_cast<int32_t>(vector ? DType::fp32 : store.options().dtype),
          .history = history ? 1 : 0};
}

std::vector<size_t> saved_bytes(const sparse::Store& store, std::span<const size_t> numbers,
                                int replicas, bool history) {
  std::vector<size_t> bytes(static_cast<size_t>(replicas));
  size_t feedback = 0;
  for (size_t p = 0; p < store.parameters().size(); ++p) {
    const sparse::Parameter& parameter = store.parameters()[p];
    if (parameter.spec.borrowed) {
      continue;
    }
    SavedLayout layout = saved_layout(store, parameter, history && parameter.spec.prunable);
    if (!parameter.full()) {
      layout.index_bytes = static_cast<int64_t>(sparse::predicted_bytes(
          sparse::Encoding::golomb, parameter.size(), parameter.kept(), parameter.index.shape()));
    }
    const int writer = writing_replica(numbers.empty() ? p : numbers[p], replicas);
    bytes[static_cast<size_t>(writer)] += layout.bytes();
    feedback +=
        store.options().feedback ? static_cast<size_t>(parameter.kept()) * size_of(DType::fp32) : 0;
  }
  for (size_t& some : bytes) {
    some += feedback;
  }
  return bytes;
}

}  // namespace espalier::train
