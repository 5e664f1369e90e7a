#pragma once
// Asynchronous copies between the host and a device: inputs and results of micro-batches. Each copy
// uses pinned memory, which is free again when the copy has passed; the pool grows to the largest
// number of concurrent copies. Without a device the host accesses the tensors directly.
#include <vector>

#include "src/core/stream.h"

namespace espalier {

class Staging {
 public:
  /// `stream` must outlive it.
  explicit Staging(Stream& stream) : stream_(stream) {}

  /// Pinned memory of the type and shape of `to`, for the host to fill and `send`; without a
  /// device, `to` itself.
  Tensor host_memory(const Tensor& to);
  void send(const Tensor& host, const Tensor& to);

  /// Result of `fetch`: `host` holds the contents of `from` once `mark` has passed; the host then
  /// calls `done`. Without a device `host` is `from` itself, at once.
  struct Arrival {
    Tensor host;
    Mark mark = 0;
  };
  Arrival fetch(const Tensor& from);
  /// Releases a fetched tensor, or memory from `host_memory` that will not be sent.
  void done(const Tensor& host);

 private:
  struct Piece {
    Buffer memory;
    Mark free_after = 0;
    bool taken = false;
  };
  void give_back(const Tensor& host, Mark free_after);

  Stream& stream_;
  std::vector<Piece> pieces_;
};

}  // namespace espalier
