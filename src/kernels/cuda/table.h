#pragma once
// All operations of the table "cuda"; see launch.h for the namespace.
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_GPU {

#define ESPALIER_OPERATION(row, Args, on_cpu) void row(Stream& stream, const Args& args);
#define ESPALIER_HOST_OPERATION(row, Args, on_cpu)
#include "src/kernels/operations.def"

/// Opens the device of a rank; throws Failure if there is none for it.
std::unique_ptr<Device> open_device(int local_rank);

const Kernels& table();

}  // namespace espalier::kernels::ESPALIER_GPU
