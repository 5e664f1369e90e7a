#include "src/core/mirror.h"

namespace espalier {

Mirror::Mirror(Stream& stream, const Tensor& tensor)
    : stream_(&stream), host_(tensor), device_(tensor) {
  if (tensor.on_device) {
    host_memory_.resize(tensor.bytes());
    host_ = Tensor(host_memory_.data(), tensor.dtype, tensor.shape);
  }
}

Mirror Mirror::of_host(Stream& stream, const Tensor& host) {
  Mirror mirror(stream);
  mirror.host_ = mirror.device_ = host;
  if (stream.arena().on_device()) {
    mirror.device_memory_ =
        stream.arena().allocate(Memory::scratch, "copy for kernels", host.dtype, host.shape);
    mirror.device_ = mirror.device_memory_.tensor();
  }
  return mirror;
}

const Mirror& Mirror::read() const {
  stream_->copy(device_, host_);
  stream_->synchronize();
  return *this;
}

void Mirror::write() const {
  stream_->copy(host_, device_);
  stream_->synchronize();
}

}  // namespace espalier
