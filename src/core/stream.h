#pragma once
// A stream: where kernels run. On the CPU it is a number of threads and a growing workspace; calls
// are synchronous. One stream belongs to one rank and is used by one thread at a time.
#include "src/core/arena.h"

namespace espalier {

class Stream {
 public:
  Stream(Arena& arena, int threads) : arena_(arena), threads_(threads) {}

  int threads() const { return threads_; }
  Arena& arena() { return arena_; }

  /// At least `bytes` of 64-byte aligned memory, valid until the next call; contents undefined.
  /// Kernels use it within one call and never nest.
  std::byte* workspace(size_t bytes) {
    if (bytes > workspace_.tensor().bytes() || !workspace_.tensor()) {
      workspace_.release();
      workspace_ = arena_.allocate(Memory::scratch, "workspace", DType::uint8,
                                   Shape{static_cast<int64_t>(bytes)});
    }
    return static_cast<std::byte*>(workspace_.tensor().data);
  }

 private:
  Arena& arena_;
  int threads_;
  Buffer workspace_;
};

}  // namespace espalier
