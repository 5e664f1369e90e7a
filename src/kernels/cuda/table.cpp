#include "src/kernels/cuda/table.h"

#include "src/kernels/dry/table.h"
#include "src/kernels/verify/verify.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

template <class Args, Op<Args> kKernel>
void checked(Stream& stream, const Args& args) {
  verify(args);
  kKernel(stream, args);
}

/// Counts the call. On a dry arena the kernel only allocates its workspace.
template <class Args, Op<Args> kKernel>
void planned(Stream& stream, const Args& args) {
  verify(args);
  dry::count(cost(args));
  kKernel(stream, args);
}

constexpr Kernels kPlan{
    .name = ESPALIER_GPU_NAME "-plan",
#define ESPALIER_OPERATION(row, Args, on_cpu) .row = planned<Args, row>,
#define ESPALIER_HOST_OPERATION(row, Args, on_cpu)
#include "src/kernels/operations.def"
};

constexpr Kernels kTable{
    .name = ESPALIER_GPU_NAME,
    .open = open_device,
    .plan = &kPlan,
#define ESPALIER_OPERATION(row, Args, on_cpu) .row = checked<Args, row>,
#define ESPALIER_HOST_OPERATION(row, Args, on_cpu)
#include "src/kernels/operations.def"
};

}  // namespace

const Kernels& table() { return kTable; }

}  // namespace espalier::kernels::ESPALIER_GPU
