#pragma once

// The best instruction set of this CPU for which kernels are compiled. Only functions of compiler
// and system: cmake/native_isa.cmake runs this while CMake configures.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace espalier::kernels {

// Each contains those before.
enum class InstructionSet { kPortable, kAvx2, kAvx512, kAvx512Bf16, kAmx };

/// Linux lets a process use the registers of the matrix unit only on request (since 5.16). Threads
/// inherit it.
inline bool permits_matrix_unit() {
#ifdef SYS_arch_prctl
  constexpr long kRequest = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;     // XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}

/// AMX for bfloat16. From CPUID, since clang 16 does not know the names of these features.
inline bool has_matrix_unit() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBf16 = 1u << 22, kTiles = 1u << 24;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kBf16) != 0 && (d & kTiles) != 0;
}

inline InstructionSet best_instruction_set() {
  // x86-64-v3 and -v4 by their features, since clang 16 does not know the names of the levels.
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2")) {
    return InstructionSet::kPortable;
  }
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512cd") || !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512vl")) {
    return InstructionSet::kAvx2;
  }
  if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vbmi2")) {
    return InstructionSet::kAvx512;
  }
  return has_matrix_unit() && permits_matrix_unit() ? InstructionSet::kAmx
                                                    : InstructionSet::kAvx512Bf16;
}

}  // namespace espalier::kernels
