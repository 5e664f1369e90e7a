#include "src/kernels/cuda/tables.h"

#include <cuda_runtime_api.h>

#include "src/kernels/cuda/cudnn/library.h"
#include "src/kernels/cuda/device/device.h"
#include "src/kernels/cuda/sparse/cusparse.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/device_rates.h"

namespace espalier::kernels::cuda {
namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string no_driver() {
  int driver = 0;
  int runtime = 0;
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  static_cast<void>(cudaDriverGetVersion(&driver));
  static_cast<void>(cudaGetLastError());
  return driver == 0 ? "no NVIDIA driver is loaded on this machine: install one"
                     : fmt::format(
                           "the NVIDIA driver is for CUDA {}, too old for this build's {}: "
                           "install a newer one",
                           version_text(driver), version_text(runtime));
}

/// The reason why no device of this machine is usable; empty if one is.
std::string find_absence() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver) {
    return no_driver();
  }
  if (status != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return fmt::format("no GPU is visible ({}): see nvidia-smi and CUDA_VISIBLE_DEVICES",
                       cudaGetErrorString(status));
  }
  for (int device = 0; device < count; ++device) {
    if (is_new_enough(device)) {
      return {};
    }
  }
  return fmt::format("none of {} GPUs has compute capability 8.0 or later", count);
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, which, device), "attribute of a device");
  return value;
}

/// Peak rates of the device, after a comma; empty if they are unknown.
std::string rates_of_device(int device) {
  const std::string text =
      rates_text({.major = attribute(cudaDevAttrComputeCapabilityMajor, device),
                  .minor = attribute(cudaDevAttrComputeCapabilityMinor, device),
                  .multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device),
                  .clock_khz = attribute(cudaDevAttrClockRate, device),
                  .memory_clock_khz = attribute(cudaDevAttrMemoryClockRate, device),
                  .bus_bits = attribute(cudaDevAttrGlobalMemoryBusWidth, device)});
  return text.empty() ? text : ", " + text;
}

}  // namespace

std::string absence() {
  static const std::string why = find_absence();
  return why;
}

std::vector<const Kernels*> tables() {
  return absence().empty() ? std::vector<const Kernels*>{&table()} : std::vector<const Kernels*>();
}

const Kernels* plan_table() { return table().plan; }

std::vector<std::string> devices() {
  std::vector<std::string> found;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return found;
  }
  int driver = 0;
  int runtime = 0;
  check_cuda(cudaDriverGetVersion(&driver), "version of the driver");
  check_cuda(cudaRuntimeGetVersion(&runtime), "version of the runtime");
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp about;
    check_cuda(cudaGetDeviceProperties(&about, device), "properties of a device");
    found.push_back(
        fmt::format("{} ({:.1f} GiB, compute capability {}.{}, {} multiprocessors{}, "
                    "driver {}, runtime {})",
                    about.name, static_cast<double>(about.totalGlobalMem) * 0x1p-30, about.major,
                    about.minor, about.multiProcessorCount, rates_of_device(device),
                    version_text(driver), version_text(runtime)));
  }
  return found;
}

std::vector<std::string> libraries() {
  return absence().empty() ? std::vector{"cuSPARSE: " + cusparse_state(), "cuDNN: " + cudnn_state()}
                           : std::vector<std::string>();
}

std::vector<size_t> free_bytes() {
  const size_t count = devices().size();
  std::vector<size_t> found;
  int present = 0;
  if (count > 0) {
    check_cuda(cudaGetDevice(&present), "current device");
  }
  for (size_t device = 0; device < count; ++device) {
    size_t free = 0;
    size_t total = 0;
    check_cuda(cudaSetDevice(static_cast<int>(device)), "choice of the device");
    check_cuda(cudaMemGetInfo(&free, &total), "free memory");
    found.push_back(free);
  }
  if (count > 0) {
    check_cuda(cudaSetDevice(present), "choice of the device");
  }
  return found;
}

}  // namespace espalier::kernels::cuda
