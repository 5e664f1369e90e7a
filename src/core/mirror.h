#pragma once
// An array that both kernels and the host access occasionally: start, new masks, checkpoints,
// tools. On a device it has two sides with synchronous copies between them. Without a device both
// sides are the same memory, and `read` and `write` do nothing.
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
  /// A mirror of host memory; the device side is allocated as scratch.
  static Mirror of_host(Stream& stream, const Tensor& host);

  const Tensor& host() const { return host_; }
  const Tensor& device() const { return device_; }
  /// Copies the device side to the host side, after all kernels so far; waits.
  const Mirror& read() const;
  /// Copies the host side to the device side; waits.
  void write() const;

 private:
  Mirror(Stream& stream) : stream_(&stream) {}

  Stream* stream_;
  Tensor host_, device_;
  std::vector<std::byte> host_memory_;
  Buffer device_memory_;
};

}  // namespace espalier
