#include "src/kernels/device_rates.h"

#include <fmt/format.h>

#include <cmath>

namespace espalier::kernels {
namespace {

double flops_a_clock(int major, int minor) {
  switch (10 * major + minor) {
    case 80:
      return 2048;
    case 90:
      return 4096;
    case 100:
      return 8192;
    default:  // unknown: rates differ within a capability (GeForce: half of professional cards)
      return 0;
  }
}

/// 1071 -> "1,071".
std::string grouped(double number) {
  const auto whole = std::llround(number);
  return whole < 1000 ? fmt::format("{}", whole)
                      : fmt::format("{},{:03}", whole / 1000, whole % 1000);
}

}  // namespace

std::string rates_text(const DeviceNumbers& device) {
  const double dense_bf16 = 1e3 * static_cast<double>(device.clock_khz) * device.multiprocessors *
                            flops_a_clock(device.major, device.minor);
  const double memory = 2 * 1e3 * static_cast<double>(device.memory_clock_khz) *
                        static_cast<double>(device.bus_bits) / 8;
  std::string text;
  if (dense_bf16 > 0) {
    text = fmt::format("{} TFLOP/s of dense bf16 (at {} MHz)", grouped(1e-12 * dense_bf16),
                       grouped(1e-3 * static_cast<double>(device.clock_khz)));
  }
  if (memory > 0) {
    text += fmt::format("{}{} GB/s of memory", text.empty() ? "" : " and ", grouped(1e-9 * memory));
  }
  return text.empty() ? text : "at most " + text;
}

}  // namespace espalier::kernels
