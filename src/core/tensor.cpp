#include "src/core/tensor.h"

namespace espalier {

void throw_no_access(DType wanted, const Tensor& tensor) {
  if (tensor.on_device) {
    throw Bug(
        fmt::format("the host reads a tensor {} in the memory of a device", tensor.shape.text()));
  }
  throw Bug(fmt::format("a tensor of {} was read as {}", name_of(tensor.dtype), name_of(wanted)));
}

}  // namespace espalier
