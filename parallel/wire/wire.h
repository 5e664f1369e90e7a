#pragma once
// Conversion between elements of a flat array and their bytes on the wire.
//
// The array is cut into segments (kept elements of a parameter), each with its own format
// (src/kernels/wire_format.h). A message of elements [first, first + count) holds the encoded share
// of each segment in that range, in order. So buckets of values start anew in every message and at
// every segment, and the size of a message is a pure function of (first, count). Elements between
// segments (padding) are not sent.
//
// Error feedback: with an array e of this rank, `encode` sends x + e and keeps e = x + e - the
// decoded value. Every reduction encodes each element at most once a step on each rank: a rank's
// own share of a sum, a partial sum, or the sum itself. So one array serves all reductions, and the
// e of all ranks add up to the error of the sums, whichever rank encodes which. Source: Seide and
// others, Interspeech 2014; of the sum as well: Tang and others, "DoubleSqueeze", ICML 2019.
//
// Differences: all ranks hold equal elements x of a segment with `sends_difference`, and one rank
// knows their new values (`target`). It sends code(target - x). On every rank, its own included, x
// becomes x + decode(code): added in fp32, then rounded once to x's type. The next target - x
// contains the error of a code, so no feedback is kept for it. With a non-finite factor (from an
// update that changed no target) the difference is zero: x stays, except that -0 becomes 0. Source:
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
  bool sends_difference = false;
  Tensor target = {};  ///< fp32 [count], on the rank that encodes changes
};

/// The format that sends elements of this type unchanged.
kernels::WireFormat plain_format(DType dtype);

class Wire {
 public:
  /// Both must outlive it. Segments ascend and do not overlap; equal on all ranks.
  Wire(const kernels::Kernels& kernels, Stream& stream, std::vector<WireSegment> segments = {});
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  void set_segments(std::vector<WireSegment> segments);
  std::span<const WireSegment> segments() const { return segments_; }
  /// Whether all elements are sent unchanged: no codec, and no unsent errors of an earlier codec.
  bool plain(DType dtype) const;
  /// fp32, as long as the array; empty: no feedback.
  void set_feedback(const Tensor& feedback) { feedback_ = feedback; }
  const Tensor& feedback() const { return feedback_; }
  /// Key of stochastic rounding; different on each rank and in each step. 0: round to nearest.
  void set_key(uint64_t key) { key_ = key; }
  uint64_t key() const { return key_; }
  /// Factor of changes, fp32 [1], in memory that kernels read; empty: none.
  void set_factor(const Tensor& factor) { factor_ = factor; }

  /// Allocates what messages of up to `count` elements of this type need.
  void reserve(DType dtype, int64_t count);
  /// Bytes of a message of elements [first, first + count).
  size_t bytes(int64_t first, int64_t count) const;
  /// x: elements from `first` on, fp32, bf16 or fp16. `out` has the size that `bytes` returns.
  /// `decoded` (same length, any of these types; may be x, and is x with changes) receives the
  /// values that the others decode.
  void encode(const Tensor& x, int64_t first, std::span<std::byte> out, const Tensor& decoded = {});
  /// Decodes into y, fp32, bf16 or fp16; elements between segments become zero. Changes are added
  /// to y.
  void decode(std::span<const std::byte> in, int64_t first, const Tensor& y);
  /// y += decoded `in`; y fp32.
  void add(std::span<const std::byte> in, int64_t first, const Tensor& y);

  // The same for elements that are not sent:
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
  /// Whether values are computed in fp32 before they are encoded.
  bool converts(DType dtype) const { return dtype != DType::fp32 || feedback_ || changes_; }
  Tensor scratch(Buffer& buffer, int64_t count);

  const kernels::Kernels& kernels_;
  Stream& stream_;
  std::vector<WireSegment> segments_;
  bool changes_ = false;  ///< some segments are changes
  Tensor feedback_, factor_;
  uint64_t key_ = 0;
  Buffer values_, decoded_;  ///< fp32, of the longest message so far
};

/// Encoding of an array's elements.
struct WireView {
  Wire* wire = nullptr;  ///< empty: elements are sent unchanged
  int64_t first = 0;     ///< index of the array's first element in the wire's numbering
};

}  // namespace espalier::parallel
