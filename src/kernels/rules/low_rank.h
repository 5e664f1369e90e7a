#pragma once
// What all tables share of OrthonormaliseArgs (kernels.h).

namespace espalier::kernels {

/// Below this share of its length, what is left of a row is rounding of fp32 sums.
inline constexpr double kDependent = 0x1p-18;

}  // namespace espalier::kernels
