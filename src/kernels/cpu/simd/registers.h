#pragma once

namespace espalier::kernels::ESPALIER_ISA {

/// Vector registers of the instruction set.
#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int kRegisters = 32;
#else
inline constexpr int kRegisters = 16;
#endif

}  // namespace espalier::kernels::ESPALIER_ISA
