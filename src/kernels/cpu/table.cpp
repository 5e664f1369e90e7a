#include "src/kernels/cpu/table.h"

#include "src/kernels/cpu/support.h"
#include "src/kernels/dry/table.h"
#include "src/kernels/verify/verify.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

// Namespaces of the kernels, for each kind of operations.def.
namespace plain = espalier::kernels::ESPALIER_ISA;
namespace workspace = espalier::kernels::ESPALIER_ISA;
namespace once = espalier::kernels::cpu;
enum class On : uint8_t { plain, workspace, once };

template <class Args, Op<Args> kKernel>
void checked(Stream& stream, const Args& args) {
  verify(args);
  kKernel(stream, args);
}

/// Counts the call. On a dry arena the kernel only requests its workspace.
template <class Args, Op<Args> kKernel, On kOn>
void planned(Stream& stream, const Args& args) {
  verify(args);
  dry::count(cost(args));
  if (kOn == On::workspace && cpu::is_dry(stream)) {
    kKernel(stream, args);
  }
}

constexpr Kernels kPlan{
    .name = ESPALIER_ISA_NAME "-plan",
#define ESPALIER_OPERATION(row, Args, on_cpu) .row = planned<Args, on_cpu::row, On::on_cpu>,
#include "src/kernels/operations.def"
};

constexpr Kernels kTable{
    .name = ESPALIER_ISA_NAME,
    .plan = &kPlan,
#define ESPALIER_OPERATION(row, Args, on_cpu) .row = checked<Args, on_cpu::row>,
#include "src/kernels/operations.def"
};

}  // namespace

const Kernels& table() { return kTable; }

}  // namespace espalier::kernels::ESPALIER_ISA
