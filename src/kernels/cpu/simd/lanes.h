#pragma once

namespace espalier::kernels::ESPALIER_ISA {

/// Floats in the widest vector register of the instruction set.
#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

}  // namespace espalier::kernels::ESPALIER_ISA
