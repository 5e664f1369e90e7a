#pragma once
// Copies between the host and a device that nobody waits for: what a step's micro-batches read, and
// what they tell. They go through pinned memory that is taken for one copy and free again when that
// has passed; as much of it is held as copies were under way at once. Without a device there is
// none: the host fills and reads the tensors themselves.
#include <vector>

#include "src/core/stream.h"

namespace espalier {

class Staging {
 public:
  /// `stream` must outlive it.
  explicit Staging(Stream& stream) : stream_(stream) {}

  /// Memory for the host to fill, of the type and shape of `to`, and then to be sent there; `to`
  /// itself without a device.
  Tensor room(const Tensor& to);
  void send(const Tensor& room, const Tensor& to);

  /// What kernels so far have made of `from`: the host finds it in `host` once `mark` has passed,
  /// and says when it is done with it. Without a device that is `from` itself, at once.
  struct Arrival {
    Tensor host;
    Mark mark = 0;
  };
  Arrival fetch(const Tensor& from);
  /// Of what has come, or of room that will not be sent.
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
