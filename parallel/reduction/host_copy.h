#pragma once
// The host's view of a flat array, for messages. An array in host memory is its own view. An array
// on a device has a pinned copy: prefixes are copied to it while kernels run; `write_back` copies
// the result of the collective back.
#include <deque>

#include "src/core/stream.h"

namespace espalier::parallel {

class HostCopy {
 public:
  /// `stream` computes the arrays, and must outlive it. Null: nothing is copied.
  explicit HostCopy(Stream* stream) : stream_(stream) {}

  void begin(const Tensor& flat);
  const Tensor& host() const { return host_; }
  /// Enqueues the copy of elements up to `end`, whose kernels are enqueued. `end` never decreases.
  void fetch(int64_t end);
  /// The elements that have arrived. Does not wait.
  int64_t arrived();
  /// Fetches all elements and waits for them.
  void fetch_all();
  /// Copies the array back to where kernels read it.
  void write_back();

 private:
  bool copies() const { return stream_ != nullptr && flat_.on_device; }

  Stream* stream_;
  Tensor flat_, host_;
  Buffer memory_;
  int64_t fetched_ = 0, arrived_ = 0;
  struct Copy {
    int64_t end = 0;
    Mark mark = 0;
  };
  std::deque<Copy> in_flight_;
};

}  // namespace espalier::parallel
