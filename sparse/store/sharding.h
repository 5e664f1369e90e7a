#pragma once
// How data-parallel ranks shard the optimizer state over kept elements (ZeRO-1). The store reads
// shares and collects them through this interface; it sends no messages itself.
#include <cstdint>
#include <span>
#include <vector>

#include "src/core/range.h"
#include "src/core/tensor.h"

namespace espalier::sparse {

/// A parameter's place in the flat arrays.
struct Extent {
  int64_t offset = 0;
  int64_t kept = 0;
};

/// A vector in the memory of a device, and the range of it that each rank has.
struct SharedVector {
  Tensor whole;
  std::span<const Range> shares;
};

class Sharding {
 public:
  virtual ~Sharding() = default;

  virtual int rank() const = 0;
  /// For each parameter, in the order given (ascending offsets), the range of its kept elements
  /// that each rank owns: in rank order they cover [0, kept), and every one but the last ends at a
  /// multiple of kernels::kQuantizeBlock. `gradient`: type of the gradients, which are summed in
  /// buckets of bytes.
  virtual std::vector<std::vector<Range>> shares(std::span<const Extent> extents,
                                                 DType gradient) = 0;
  /// Collective. `whole` [kept] holds this rank's range; afterwards all ranges.
  virtual void collect(std::span<const Range> shares, const Tensor& whole) = 0;
  /// Whether ranks can collect from device to device, ordered on the stream without a wait of the
  /// host.
  virtual bool collects_on_device() const { return false; }
  virtual void collect_on_device(std::span<const SharedVector> /*vectors*/) {}
};

}  // namespace espalier::sparse
