#include "src/kernels/cpu/tables.h"

namespace espalier::kernels {

namespace avx512bf16 {
const Kernels& table();
}
namespace avx512 {
const Kernels& table();
}
namespace avx2 {
const Kernels& table();
}
namespace portable {
const Kernels& table();
}

namespace cpu {

std::vector<const Kernels*> tables() {
  std::vector<const Kernels*> found;
  if (__builtin_cpu_supports("x86-64-v4") != 0 && __builtin_cpu_supports("avx512bf16") != 0 &&
      __builtin_cpu_supports("avx512vbmi2") != 0) {
    found.push_back(&avx512bf16::table());
  }
  if (__builtin_cpu_supports("x86-64-v4") != 0) {
    found.push_back(&avx512::table());
  }
  if (__builtin_cpu_supports("x86-64-v3") != 0) {
    found.push_back(&avx2::table());
  }
  found.push_back(&portable::table());
  return found;
}

}  // namespace cpu

bool has_native_bf16() {
  return __builtin_cpu_supports("avx512bf16") != 0 || __builtin_cpu_supports("amx-bf16") != 0;
}

}  // namespace espalier::kernels
