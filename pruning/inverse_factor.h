#pragma once
// The triangular factor of the inverse of a symmetric positive definite matrix.
#include <cstdint>
#include <span>

namespace espalier::pruning {

/// Replaces the upper triangle of A [n, n], row-major, by that of U with A⁻¹ = Uᵀ U, and ignores
/// the lower one. Returns false, with A destroyed, if A is not positive definite or not finite.
/// Factors A = R Rᵀ with R upper triangular, from the last column on; U = R⁻¹. 2 n³ / 3 operations,
/// in place: A⁻¹, whose condition is the same, is never formed.
bool factor_inverse(std::span<double> a, int64_t n);

}  // namespace espalier::pruning
