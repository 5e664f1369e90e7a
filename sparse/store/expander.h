#pragma once
// Scratch in which the weights of storage `expanded` are dense, for one product at a time.
//
// On a device there are two slots: a side stream rebuilds the next weight in one while the product
// with the current weight reads the other. A pass (a forward or a backward of some layers) takes
// its weights in the same order each time, so its first run records the order and later runs
// prefetch. A wrong prediction costs one rebuild and changes no bit.
//
//   side:  after the calls enqueued so far   rebuild next                 record a mark
//   main:  ... previous product | product with the current weight | after the mark: next product
//
// Values do not change within a pass; its end empties the slots. Outside of passes each weight is
// rebuilt when it is taken. Memory: the largest weight so far, twice on a device.
#include <functional>
#include <map>
#include <vector>

#include "src/core/stream.h"

namespace espalier::sparse {

class Expander {
 public:
  struct Weight {
    size_t number = 0;
    Shape shape;
    bool operator==(const Weight& other) const { return number == other.number; }
  };
  /// Writes the dense elements of a weight, on a stream.
  using Write = std::function<void(Stream&, size_t number, const Tensor& to)>;

  Expander(Stream& stream, DType dtype, Write write)
      : stream_(stream), dtype_(dtype), write_(std::move(write)) {}

  /// The weight, for calls of the stream; valid until the next call.
  Tensor take(const Weight& weight);

  /// Passes with the same key take the same weights in the same order; passes do not nest.
  void begin_pass(int key);
  /// Later calls of the stream follow the prefetch.
  void end_pass();
  /// How often the scratch has been reallocated.
  int64_t grown() const { return grown_; }

 private:
  struct Slot {
    Buffer memory;
    bool full = false;
    Weight holds;
    bool has(const Weight& weight) const { return full && holds == weight; }
  };
  bool alternates() const { return in_pass_ && stream_.arena().on_device(); }
  Slot& current() { return slots_[current_]; }
  Slot& other() { return slots_[1 - current_]; }
  Tensor dense(const Slot& slot, const Weight& weight) const {
    return slot.memory.tensor().as(dtype_, weight.shape);
  }
  void reserve(const Weight& weight);
  void make_current(const Weight& weight);
  void join();
  const Weight* next_after(const Weight& weight) const;
  void prefetch(const Weight& weight);

  Stream& stream_;
  DType dtype_;
  Write write_;
  Slot slots_[2];
  size_t current_ = 0;
  int64_t grown_ = 0;
  std::map<int, std::vector<Weight>> seen_;  ///< the last pass of each key
  std::vector<Weight> taken_;                ///< in this pass
  const std::vector<Weight>* expected_ = nullptr;
  int key_ = 0;
  bool in_pass_ = false;
  bool prefetched_ = false;  ///< the side stream has work that the stream does not follow yet
  Mark rebuilt_ = 0;         ///< behind that work
};

}  // namespace espalier::sparse
