#pragma once
// What kernels of a device read of an index: an int32 index as it is, any other as a bitmap with
// its ranks. The host keeps the index itself, in whatever encoding; this is made from it once for a
// mask. Bytes: 4 a kept element, or 0.133 an element; category index.
#include "sparse/index/index.h"
#include "src/core/stream.h"

namespace espalier::sparse {

class DeviceIndex {
 public:
  DeviceIndex() = default;
  /// Of an index that is not full; of a dry one takes the bytes alone.
  DeviceIndex(Stream& stream, const Index& index);

  size_t bytes() const { return memory_.bytes(); }
  explicit operator bool() const { return static_cast<bool>(memory_.tensor()); }
  const kernels::Positions& positions() const { return positions_; }

 private:
  Buffer memory_;
  kernels::Positions positions_;
};

}  // namespace espalier::sparse
