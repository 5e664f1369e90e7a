#pragma once
// A thread's asynchronous copies into shared memory that are under way. They arrive as late as
// permitted: when the thread waits for their group. Until then the destination has all bits set, so
// a read or write that comes too early is found. The source is read late as well.
#include <cstdint>
#include <vector>

namespace espalier::simt {

class AsyncCopies {
 public:
  /// Copies `bytes` from `from`, then zeros, 16 bytes in all.
  void copy(void* to, const void* from, int bytes);
  void commit() { ++committed_; }
  /// Completes all groups except the last `later`.
  void wait(int later);
  bool none() const { return under_way_.empty(); }
  void forget();

 private:
  struct Copy {
    void* to;
    const void* from;
    int bytes;
    int64_t group;
  };
  std::vector<Copy> under_way_;  ///< in the order of groups
  int64_t committed_ = 0;        ///< groups
};

}  // namespace espalier::simt
