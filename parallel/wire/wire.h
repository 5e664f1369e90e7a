#pragma once
// Between elements of a flat array and the bytes that stand for them on the wire.
//
// The array is cut into segments (kept elements of a parameter), each with a format of its own
// (src/kernels/wire_format.h). A message of elements [first, first + count) holds what each
// segment's share of that range encodes to, one after another. So buckets of values begin anew in
// every message and at every segment, and the size of a message is a pure function of (first,
// count). What lies between segments (padding) does not travel.
//
// Error feedback: with an array e of this rank, `encode` sends x + e and keeps e = x + e - what the
// others decode. Every reduction encodes each element at most once a step on each rank: a rank's
// own share of a sum, a partial sum, or the sum itself. So one array serves all of them, and
// whichever rank does which, the e of all ranks add up to what the sums still lack. Source: Seide
// and others, Interspeech 2014; of the sum as well: Tang and others, "DoubleSqueeze", ICML 2019.
//
// Changes: of a segment with `change` all ranks hold the same elements x, and one of them knows
// what they are to become (`target`). It sends code(target - x), and on every rank, its own too, x
// becomes x + decode(code): added in fp32, then rounded once to x's type. What a code lost is in
// the next target - x again, so nothing is kept for it. With a factor that is not finite (that of
// an update which changed no target) the change is zero: x stays, but that -0 becomes 0. Source:
// Koloskova and others, "CHOCO-SGD", ICML 2019.
#include <cstdint>
#include <span>
#include <vector>

#include "src/core/arena.h"
#include "src/kernels/kernels.h"

namespace espalier::parallel {

struct WireSegment {
  int64_t first = 0, count = 0;  ///< elements of the array
  kernels::WireFormat format;
  bool change = false;
  Tensor target = {};  ///< fp32 [count], of the rank that encodes changes
};

/// The format in which elements of this type travel as they are.
kernels::WireFormat plain_format(DType dtype);

class Wire {
 public:
  /// Both must outlive it. Segments ascend and do not overlap; equal on all ranks.
  Wire(const kernels::Kernels& kernels, Stream& stream, std::vector<WireSegment> segments = {});
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  void set_segments(std::vector<WireSegment> segments);
  std::span<const WireSegment> segments() const { return segments_; }
  /// Whether all travel as they are: no codec, and no errors of an earlier one to be sent.
  bool plain(DType dtype) const;
  /// fp32, as long as the array; empty: no feedback.
  void set_feedback(const Tensor& feedback) { feedback_ = feedback; }
  const Tensor& feedback() const { return feedback_; }
  /// For rounding at random; different on each rank and in each step. 0: to nearest.
  void set_key(uint64_t key) { key_ = key; }
  uint64_t key() const { return key_; }
  /// Of changes, fp32 [1], as kernels find it; empty: none.
  void set_factor(const Tensor& factor) { factor_ = factor; }

  /// Of elements [first, first + count).
  size_t bytes(int64_t first, int64_t count) const;
  /// x: elements from `first` on, fp32, bf16 or fp16. `out` has the size that `bytes` says. `decoded` (as
  /// long, of either type; may be x, and is with changes) becomes what the others will read.
  void encode(const Tensor& x, int64_t first, std::span<std::byte> out, const Tensor& decoded = {});
  /// Into y, fp32, bf16 or fp16; between segments y becomes zero. Changes are added to what y holds.
  void decode(std::span<const std::byte> in, int64_t first, const Tensor& y);
  /// y += what `in` stands for; y fp32.
  void add(std::span<const std::byte> in, int64_t first, const Tensor& y);

  // The same for elements that do not travel:
  void copy(const Tensor& x, const Tensor& y);
  void add(const Tensor& x, const Tensor& y);

 private:
  struct Part {
    int64_t begin = 0, count = 0;  ///< from the message's first element
    size_t bytes = 0;
    const WireSegment* segment = nullptr;
  };
  template <class Body>
  void for_parts(int64_t first, int64_t count, const Body& body) const;
  void decode_parts(std::span<const std::byte> in, int64_t first, const Tensor& y, bool add);
  void subtract_from_targets(const Tensor& x, int64_t first) const;
  Tensor scratch(Buffer& buffer, int64_t count);

  const kernels::Kernels& kernels_;
  Stream& stream_;
  std::vector<WireSegment> segments_;
  bool changes_ = false;  ///< some segments are changes
  Tensor feedback_, factor_;
  uint64_t key_ = 0;
  Buffer values_, decoded_;  ///< fp32, of the longest message so far
};

/// How the elements of an array travel.
struct WireView {
  Wire* wire = nullptr;  ///< empty: as they are
  int64_t first = 0;     ///< number of the array's first element in what the wire knows
};

}  // namespace espalier::parallel
