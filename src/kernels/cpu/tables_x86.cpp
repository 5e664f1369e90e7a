#include "src/core/error.h"
#include "src/kernels/cpu/instruction_set.h"
#include "src/kernels/cpu/tables.h"

namespace espalier::kernels {

namespace amx {
const Kernels& table();
}
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

// CMake defines ESPALIER_HAS_… for each table that is built (option ESPALIER_CPU_TABLES).
namespace cpu {

std::vector<const Kernels*> tables() {
  [[maybe_unused]] const InstructionSet best = best_instruction_set();
  std::vector<const Kernels*> found;
#ifdef ESPALIER_HAS_amx
  if (best >= InstructionSet::kAmx) {
    found.push_back(&amx::table());
  }
#endif
#ifdef ESPALIER_HAS_avx512bf16
  if (best >= InstructionSet::kAvx512Bf16) {
    found.push_back(&avx512bf16::table());
  }
#endif
#ifdef ESPALIER_HAS_avx512
  if (best >= InstructionSet::kAvx512) {
    found.push_back(&avx512::table());
  }
#endif
#ifdef ESPALIER_HAS_avx2
  if (best >= InstructionSet::kAvx2) {
    found.push_back(&avx2::table());
  }
#endif
#ifdef ESPALIER_HAS_portable
  found.push_back(&portable::table());
#endif
  if (found.empty()) {
    throw Failure(
        "this program was built for another CPU: build again, or with cmake "
        "-DESPALIER_CPU_TABLES=all");
  }
  return found;
}

/// Intel's Emerald Rapids starts one in two cycles, beside four multiply-adds; AMD's Zen 5 two in a
/// cycle, as many as multiply-adds.
bool has_slow_bf16_pairs() { return __builtin_cpu_is("intel") != 0; }

}  // namespace cpu

}  // namespace espalier::kernels
