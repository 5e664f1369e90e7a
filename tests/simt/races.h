#pragma once
// A race detector for the schedule of a device's queues. It checks operations enqueued on queues
// and host accesses to memory shared with them, not threads within a kernel.
//
// The actors are the host, which enqueues, and each queue. Vector clocks derive happens-before from
// the calls alone, independent of the device's timing:
//
//   order of a queue      each operation after all earlier ones of the same queue
//   enqueue               an operation after all that the host had done, or waited for, by then
//   follow(other, mark)   later operations of a queue after those of `other` before the mark
//   waiting               the host after the operations before a mark that it waited for or saw
//                         passed, or after all of a queue
//
// Each operation states the memory it reads and writes. For each byte the detector keeps the last
// write and all reads since, with their times. Two accesses race if at least one is a write and
// neither is known to happen before the other. The report names both operations, operands and
// actors. Races are found in any actual order of execution.
//
// A queue of a new kind (communication) is one more actor: `add` it, report its calls as
// `operation` with their reads and writes, and report its marks and waits. Queue and device of
// tests/simt/device.h do that for all queues of a simulated device; tests/device/late_table.h for
// every kernel. Sources: Lamport, CACM 1978; Mattern 1989; the shadow memory is FastTrack's (PLDI
// 2009) with all reads.
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "src/core/device.h"

namespace espalier::simt {

/// Rows of bytes that an operation reads or writes.
struct Touch {
  std::string operand;
  const void* data = nullptr;
  size_t bytes = 0;  ///< of one row
  size_t rows = 1;
  size_t stride = 0;  ///< bytes from row to row
  bool reads = false, writes = false;
};

class RaceDetector {
 public:
  using Actor = size_t;
  static constexpr Actor kHost = 0;

  RaceDetector() { add("the host"); }
  Actor add(std::string name);

  void operation(Actor by, const std::string& name, const std::vector<Touch>& touches);
  void marked(Actor queue, Mark mark);
  void followed(Actor queue, Actor other, Mark mark);
  void waited(Actor queue, Mark mark);
  void synchronized(Actor queue);
  /// The memory is freed: later accesses do not race with earlier ones.
  void forget(const void* data, size_t bytes);

  /// Races since the last call; each pair of operations and operands is reported once.
  std::vector<std::string> take_reports();

 private:
  using Clock = std::vector<int64_t>;
  struct Operation {
    std::string name;
    Actor by = 0;
    int64_t time = 0;  ///< on the clock of its actor
  };
  struct Access {
    std::shared_ptr<const Operation> operation;
    std::string operand;
  };
  struct Cell {
    uintptr_t end = 0;
    Access write;
    std::vector<Access> reads;  ///< since the write, the last of each actor
  };
  using Cells = std::map<uintptr_t, Cell>;

  Clock& clock(Actor actor) { return actors_[actor].clock; }
  static void join(Clock& to, const Clock& from);
  const Clock* clock_of(Actor queue, Mark mark) const;
  void cut(uintptr_t at);
  template <class Visit>
  void for_cells(uintptr_t begin, uintptr_t end, const Visit& visit);
  void access(const std::shared_ptr<const Operation>& now, const Touch& touch, uintptr_t begin);
  void expect_before(const Access& earlier, const Operation& now, const Touch& touch, bool write);

  struct Known {
    std::string name;
    Clock clock;
    std::map<Mark, Clock> marks;
  };
  mutable std::mutex mutex_;
  std::vector<Known> actors_;
  Cells cells_;
  std::map<std::string, bool> reports_;  ///< true: not taken yet
};

}  // namespace espalier::simt
