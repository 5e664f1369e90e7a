#pragma once
// The tiles of a pruned matrix (src/kernels/cpu/sparse/tile.h): the forms of its positions that
// sparse products of the CPU read, kept between calls. A product makes its form when it first runs;
// later ones only copy the values. Every change of the mask needs new ones.
//
// Products with few rows read lists of columns instead (src/kernels/cpu/sparse/few_rows.cpp): 2
// bytes per kept element, and the values where they are.
//
// Bytes per kept element: 1.2 (product), 5.2 (with the transpose), 1.2 (gradient); more at low
// densities, because each panel of 128 columns has lists of its rows. On a matrix unit
// (src/kernels/cpu/sparse/matrix_unit.h): 0.19 bytes per element, kept or not, for all three.
// Category index.
#include <array>

#include "src/core/arena.h"
#include "src/kernels/sparse_matrix.h"

namespace espalier::sparse {

class KeptTiles final : public kernels::KeptForms {
 public:
  /// `changes` is incremented at each allocation. `arena` and `changes` must outlive this object.
  KeptTiles(Arena& arena, int64_t& changes) : arena_(arena), changes_(changes) {}

  Place place(kernels::PositionForm form, size_t bytes) override;
  /// Whether a product that reads this form finds it, or one for all products: it then does not
  /// read the positions.
  bool made(kernels::PositionForm form) const {
    return at(form).made ||
           (form != kernels::PositionForm::rows && at(kernels::PositionForm::bits).made);
  }
  size_t bytes() const;
  /// The memory of each built form, constant until the mask changes; empty if it is not built.
  std::array<Tensor, kernels::kPositionForms> memory() const;

 private:
  struct Form {
    Buffer memory;
    bool made = false;
  };
  const Form& at(kernels::PositionForm form) const { return forms_[static_cast<size_t>(form)]; }

  Arena& arena_;
  int64_t& changes_;
  std::array<Form, kernels::kPositionForms> forms_;
};

}  // namespace espalier::sparse
