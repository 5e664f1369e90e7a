#include "sparse/index/kept_tiles.h"

namespace espalier::sparse {

kernels::KeptForms::Place KeptTiles::place(kernels::PositionForm form, size_t bytes) {
  Form& kept = forms_[static_cast<size_t>(form)];
  if (kept.memory.bytes() != bytes) {
    ++changes_;
    kept.made = false;
    kept.memory.release();
    kept.memory = arena_.allocate(Memory::index, "kept tiles", DType::uint8,
                                  Shape{static_cast<int64_t>(bytes)});
  }
  return {.memory = static_cast<std::byte*>(kept.memory.tensor().data), .made = &kept.made};
}

size_t KeptTiles::bytes() const {
  size_t sum = 0;
  for (const Form& form : forms_) {
    sum += form.memory.bytes();
  }
  return sum;
}

std::array<Tensor, kernels::kPositionForms> KeptTiles::memory() const {
  std::array<Tensor, kernels::kPositionForms> tensors;
  for (size_t i = 0; i < forms_.size(); ++i) {
    tensors[i] = forms_[i].made ? forms_[i].memory.tensor() : Tensor();
  }
  return tensors;
}

}  // namespace espalier::sparse
