// A simulated device: the CPU's kernels with delayed execution, on memory that the host cannot
// touch.
#include <cstdlib>

#include "tests/cuda/place.h"
#include "tests/device/late_table.h"

namespace espalier::testing {

const kernels::Kernels* device_table() { return &late_table(); }

void choose_nccl() { setenv("ESPALIER_NCCL_LIBRARY", ESPALIER_FAKE_NCCL, 1); }

int64_t compared_steps() { return 40; }

std::string why_no_device() { return {}; }

}  // namespace espalier::testing
