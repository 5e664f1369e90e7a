// A GPU, if this machine has one.
#include <algorithm>

#include "src/kernels/cuda/tables.h"
#include "tests/cuda/place.h"

namespace espalier::testing {

const kernels::Kernels* device_table() {
  const auto tables = kernels::available();
  const auto found = std::ranges::find(tables, "cuda", &kernels::Kernels::name);
  return found == tables.end() ? nullptr : *found;
}

void choose_nccl() {}

int64_t compared_steps() { return 100; }

std::string why_no_device() { return kernels::cuda::absence(); }

}  // namespace espalier::testing
