#include "src/kernels/backend.h"

#include "src/kernels/cuda/tables.h"

namespace espalier::kernels {

Backend::Backend(const Kernels& kernels, int threads, int local_rank)
    : kernels_(kernels),
      device_(kernels.open != nullptr ? kernels.open(local_rank) : nullptr),
      host_(device_ ? device_->pinned() : host_memory()),
      on_device_(device_ ? std::make_unique<Arena>(host_, &device_->memory()) : nullptr),
      stream_(on_device_ ? *on_device_ : host_, threads, device_ ? &device_->queue() : nullptr) {}

std::vector<std::string> devices() { return cuda::devices(); }

const Kernels& beside(const Kernels& kernels) {
  return kernels.open == nullptr ? kernels : by_name("cpu");
}

}  // namespace espalier::kernels
