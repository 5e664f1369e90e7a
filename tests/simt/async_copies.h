#pragma once
// Copies into shared memory that a thread asked for and that are under way. They arrive as late as
// they may, when the thread waits for their group; until then all bits are set where they go, so
// who reads or overwrites too early is found. The source is read late as well.
#include <cstdint>
#include <vector>

namespace espalier::simt {

class AsyncCopies {
 public:
  /// `bytes` from `from`, then zeros, 16 in all.
  void copy(void* to, const void* from, int bytes);
  void commit() { ++committed_; }
  /// All groups but the `later` last ones arrive.
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
