#pragma once
// Peak rates of a GPU, from the numbers that its driver reports:
//
//   memory       2 transfers per clock of its memory x the width of the bus
//   dense bf16   multiprocessors x clock x flops per clock of one, by compute capability: 2,048
//                (8.0), 4,096 (9.0), 8,192 (10.0); products of bf16 with fp32 sums
//
// The clock is the highest one. Under load a GPU runs below it, and data sheets state the rate at a
// clock in between (H100 SXM: 989.5 TFLOP/s = 132 x 4,096 at 1.83 GHz; its highest clock is 1.98).
#include <cstdint>
#include <string>

namespace espalier::kernels {

struct DeviceNumbers {
  int major = 0, minor = 0;  ///< of the compute capability
  int multiprocessors = 0;
  int64_t clock_khz = 0, memory_clock_khz = 0;
  int64_t bus_bits = 0;
};

/// "at most 1,071 TFLOP/s of dense bf16 (at 1,980 MHz) and 4,800 GB/s of memory"; unknown rates are
/// omitted; empty if both are unknown.
std::string rates_text(const DeviceNumbers& device);

}  // namespace espalier::kernels
