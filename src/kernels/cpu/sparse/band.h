#pragma once
// The last part of the sparse products: from fp32 sums, features x tokens, to rows of the result.
#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/operations/activation.h"

namespace espalier::kernels::ESPALIER_ISA {

/// The steps after the sums. Steps with empty operands are left out.
struct Epilogue {
  const float* bias = nullptr;
  Activation activation = Activation::none;
  Tensor out;
  Tensor activated;      ///< = f(out)
  Tensor preactivation;  ///< product *= f'(preactivation)
  bool accumulate = false;
};

/// A part of the result: some tokens x features. The band holds `row` floats per feature, one of
/// each token, in the order of SparseKernels::add_tile.
struct Place {
  const int64_t* rows;  ///< [row]: of each token in the result; negative: of none
  int64_t feature, features;
  int64_t lane_tokens, row;
};

/// Transposes the band into the result's rows.
using PutBand = void (*)(const Epilogue& e, const float* band, const Place& place);

/// For a product with operands of type `in`.
PutBand put_band_for(const Epilogue& e, DType in);

}  // namespace espalier::kernels::ESPALIER_ISA
