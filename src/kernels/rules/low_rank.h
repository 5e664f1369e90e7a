#pragma once
// Constants of OrthonormaliseArgs (operations/low_rank.h) that all tables share.

namespace espalier::kernels {

/// A row counts as dependent if its remainder is below this share of its length: the remainder is
/// then rounding of fp32 sums.
inline constexpr double kDependent = 0x1p-18;

}  // namespace espalier::kernels
