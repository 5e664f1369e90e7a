#pragma once
// Where dense gradients of pruned weights are until their kept elements are gathered: scratch, for
// one product at a time.
//
// Beside a device there are two, used in turn within a pass: a second queue gathers from one while
// the stream goes on, and the product after the next comes back to it.
//
//   stream:  product into A | … | product into B | … | after A is gathered: product into A
//   side:                     gather from A        | gather from B
//
// Memory: 4 bytes for each element of the largest so far, twice on a device.
#include <functional>

#include "src/core/stream.h"

namespace espalier::sparse {

class GradientPanels {
 public:
  explicit GradientPanels(Stream& stream) : stream_(stream) {}

  /// Room for calls of the stream, valid until the next but one; outside of passes until the next.
  Tensor take(DType dtype, const Shape& shape);
  /// Calls `gather` with the stream that is to read the room taken last.
  void gather(const std::function<void(Stream&)>& gather);

  void begin_pass() { in_pass_ = true; }
  /// Later calls of the stream come after everything that was gathered.
  void join();
  void end_pass();

  void release();
  /// How often the scratch has got other addresses.
  int64_t grown() const { return grown_; }

 private:
  struct Panel {
    Buffer memory;
    bool read = false;  ///< by the side stream, and the stream has not followed
    Mark gathered = 0;
  };
  bool alternates() const { return in_pass_ && stream_.arena().on_device(); }
  void make_room(int64_t count);
  void follow(Panel& panel);

  Stream& stream_;
  Panel panels_[2];
  size_t present_ = 0;
  bool in_pass_ = false;
  int64_t grown_ = 0;
};

}  // namespace espalier::sparse
