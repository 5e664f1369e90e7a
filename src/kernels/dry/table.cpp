#include "src/kernels/dry/table.h"

#include "src/kernels/verify/verify.h"

namespace espalier::kernels {

DryCount& dry_count() {
  thread_local DryCount count;
  return count;
}

namespace dry {
namespace {

template <class Args>
void counted(Stream&, const Args& args) {
  verify(args);
  count(cost(args));
}

constexpr Kernels kTable{
    .name = "dry",
#define ESPALIER_OPERATION(row, Args, on_cpu) .row = counted<Args>,
#include "src/kernels/operations.def"
};

}  // namespace

void count(const DryCount& cost) { dry_count() += cost; }

const Kernels& table() { return kTable; }

}  // namespace dry
}  // namespace espalier::kernels
