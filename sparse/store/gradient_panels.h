#pragma once
// Scratch for the dense gradients of pruned weights, until their kept elements are gathered.
//
// On a device there are two panels, used in turn within a pass: a side stream gathers from one
// while the stream computes the next product into the other.
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

  /// A panel for calls of the stream, valid until the second next call; outside of passes until the
  /// next one.
  Tensor take(DType dtype, const Shape& shape);
  /// Allocates the memory of a later `take` of so many elements.
  void reserve(int64_t count);
  /// The panel taken last, with its content.
  Tensor taken(DType dtype, const Shape& shape) const {
    return panels_[current_].memory.tensor().as(dtype, shape);
  }
  /// Calls `gather` with the stream that has to read the panel taken last.
  void gather(const std::function<void(Stream&)>& gather);

  void begin_pass() { in_pass_ = true; }
  /// Later calls of the stream follow all gathers.
  void join();
  void end_pass();

  void release();
  /// How often the scratch has been reallocated.
  int64_t grown() const { return grown_; }

 private:
  struct Panel {
    Buffer memory;
    bool read = false;  ///< the side stream reads it, and the stream does not follow yet
    Mark gathered = 0;
  };
  bool alternates() const { return in_pass_ && stream_.arena().on_device(); }
  void follow(Panel& panel);

  Stream& stream_;
  Panel panels_[2];
  size_t current_ = 0;
  bool in_pass_ = false;
  int64_t grown_ = 0;
};

}  // namespace espalier::sparse
