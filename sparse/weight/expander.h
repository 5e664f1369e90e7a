#pragma once
// Where the weights of storage `expanded` are dense: scratch, for one product at a time.
//
// Beside a device there are two, and a second queue rebuilds the next weight in one while the
// product with the present one reads the other. Which is next is known from the last time: a pass,
// a forward or a backward of some layers, asks for its weights in the same order each time, so its
// first run notes them and later ones look ahead. A wrong guess costs the rebuilding, no bit.
//
//   side:  after what was asked so far     rebuild next               note the mark
//   main:  ... product before | product with the present weight | after the mark: product with the next
//
// Values do not change within a pass; what it holds is forgotten at its end. Outside of passes each
// weight is rebuilt when it is asked for. Memory: as large as the largest weight so far, twice on a
// device.
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
  /// Writes the dense elements of a weight, with a stream.
  using Write = std::function<void(Stream&, size_t number, const Tensor& to)>;

  Expander(Stream& stream, DType dtype, Write write)
      : stream_(stream), dtype_(dtype), write_(std::move(write)) {}

  /// The weight, for calls of the stream; valid until the next call.
  Tensor take(const Weight& weight);

  /// Passes with the same key ask for the same weights; they do not nest.
  void begin_pass(int key);
  /// Later calls of the stream come after what was rebuilt in advance.
  void end_pass();
  /// How often the scratch has got other addresses.
  int64_t grown() const { return grown_; }

 private:
  struct Slot {
    Buffer memory;
    bool full = false;
    Weight holds;
    bool has(const Weight& weight) const { return full && holds == weight; }
  };
  bool alternates() const { return in_pass_ && stream_.arena().on_device(); }
  Slot& present() { return slots_[present_]; }
  Slot& other() { return slots_[1 - present_]; }
  Tensor dense(const Slot& slot, const Weight& weight) const {
    return slot.memory.tensor().as(dtype_, weight.shape);
  }
  void make_room(const Weight& weight);
  void bring(const Weight& weight);
  void join();
  const Weight* next_after(const Weight& weight) const;
  void look_ahead(const Weight& weight);

  Stream& stream_;
  DType dtype_;
  Write write_;
  Slot slots_[2];
  size_t present_ = 0;
  int64_t grown_ = 0;
  std::map<int, std::vector<Weight>> seen_;  ///< the last pass of each key
  std::vector<Weight> asked_;                ///< of this pass
  const std::vector<Weight>* expected_ = nullptr;
  int key_ = 0;
  bool in_pass_ = false;
  bool ahead_ = false;  ///< the side stream has been asked for something that nobody waited for
  Mark rebuilt_ = 0;    ///< of it
};

}  // namespace espalier::sparse
