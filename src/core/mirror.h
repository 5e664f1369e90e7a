#pragma once
// An array that kernels and the host both use, now and then: start, new masks, checkpoints, tools.
// It has two sides, and on a device copies between them that are waited for. Without a device both
// sides are the same memory, nothing is copied, and `read` and `write` cost nothing.
//
//   const Mirror values(stream, tensor);          an arena's tensor, for the host
//   values.read();                                values.host() has its elements now
//   const Mirror moment = Mirror::of_host(stream, vector's);   the host's memory, for kernels
//   moment.write();                               kernels find its elements in moment.device()
#include <vector>

#include "src/core/stream.h"

namespace espalier {

class Mirror {
 public:
  Mirror(Stream& stream, const Tensor& tensor);
  /// Of memory of the host; the device's side is scratch.
  static Mirror of_host(Stream& stream, const Tensor& host);

  const Tensor& host() const { return host_; }
  const Tensor& device() const { return device_; }
  /// What kernels have written so far comes to the host.
  const Mirror& read() const;
  /// What the host has written goes to the device.
  void write() const;

 private:
  Mirror(Stream& stream) : stream_(&stream) {}

  Stream* stream_;
  Tensor host_, device_;
  std::vector<std::byte> host_memory_;
  Buffer device_memory_;
};

}  // namespace espalier
