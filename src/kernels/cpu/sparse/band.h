#pragma once
// The last part of the sparse products: from fp32 sums, features x tokens or tokens x features, to
// rows of the result.
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

/// Token of lane i of the part-th vector, where a lane holds `lane_tokens` tokens when packed: each
/// quarter of a packed vector gives a quarter of each part (SparseKernels::add_tile).
constexpr int64_t lane_token(int64_t lane_tokens, int64_t part, int64_t i) {
  return i / 4 * 4 * lane_tokens + 4 * part + i % 4;
}

/// Transposes the band into the result's rows.
using PutBand = void (*)(const Epilogue& e, const float* band, const Place& place);

/// For a product with operands of type `in`.
PutBand put_band_for(const Epilogue& e, DType in);

/// A part of the result: consecutive tokens x features. Its sums are rows, `row` floats apart.
struct RowsPlace {
  int64_t token, tokens;
  int64_t feature, features;
  int64_t row;
};
using PutRows = void (*)(const Epilogue& e, const float* sums, const RowsPlace& place);
PutRows put_rows_for(const Epilogue& e, DType in);

}  // namespace espalier::kernels::ESPALIER_ISA
