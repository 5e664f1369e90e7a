#pragma once

// The best instruction set of this CPU for which kernels are compiled. Only the compiler's own
// functions: cmake/native_isa.cmake runs this while CMake configures.
namespace espalier::kernels {

enum class InstructionSet { kPortable, kAvx2, kAvx512, kAvx512Bf16 };  // each contains those before

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
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi2")
             ? InstructionSet::kAvx512Bf16
             : InstructionSet::kAvx512;
}

}  // namespace espalier::kernels
