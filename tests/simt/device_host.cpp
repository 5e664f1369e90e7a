// The device of table "cuda-simt": a simulated one (device.h).
#include "src/kernels/cuda/table.h"
#include "tests/simt/device.h"

namespace espalier::kernels::ESPALIER_GPU {

std::unique_ptr<Device> open_device(int) { return std::make_unique<simt::SimulatedDevice>(); }

}  // namespace espalier::kernels::ESPALIER_GPU
