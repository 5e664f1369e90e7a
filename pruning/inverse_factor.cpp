#include "pruning/inverse_factor.h"

#include <cmath>
#include <vector>

namespace espalier::pruning {

// All inner loops are a[k] -= factor * b[k] over rows: they vectorise, and sums have one order.
bool factor_inverse(std::span<double> a, int64_t n) {
  const auto size = static_cast<size_t>(n);
  double* const first = a.data();
  std::vector<double> copy(size);
  for (size_t j = size; j-- > 0;) {
    const double pivot = first[j * size + j];
    if (!(pivot > 0) || !std::isfinite(pivot)) {
      return false;
    }
    const double root = std::sqrt(pivot);
    for (size_t i = 0; i < j; ++i) {
      copy[i] = first[i * size + j] /= root;
    }
    first[j * size + j] = root;
    for (size_t i = 0; i < j; ++i) {  // the rest, less column j of R times itself
      double* const row = first + i * size;
      const double factor = copy[i];
      for (size_t k = i; k < j; ++k) {
        row[k] -= factor * copy[k];
      }
    }
  }
  for (size_t i = size; i-- > 0;) {  // row i of U = (e_i - sum of R_ik U_k over k > i) / R_ii
    double* const row = first + i * size;
    const double inverse = 1 / row[i];
    for (size_t k = i + 1; k < size; ++k) {
      copy[k] = row[k];
      row[k] = 0;
    }
    for (size_t k = i + 1; k < size; ++k) {
      const double* const below = first + k * size;
      const double factor = copy[k] * inverse;
      for (size_t c = k; c < size; ++c) {
        row[c] -= factor * below[c];
      }
    }
    row[i] = inverse;
  }
  return true;
}

}  // namespace espalier::pruning
