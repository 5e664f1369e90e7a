#pragma once
// A simulated device for tests of the order of accesses:
// - Queues run their work only when the host or another queue waits, or the host polls (queue.h).
//   Every few polls run one task.
// - Device memory faults unless a queue is at work; pinned memory is shared with the host.
// - Queues beside the first share its memory.
//
// It finds these errors:
// - A host that reads or writes an array of the device crashes.
// - A host that does not wait reads old numbers.
// - Freed memory disappears once all queues are empty; a later access faults.
//
// A race detector (races.h) checks the order of operations, copies and fills of all queues, of
// marks and waits, and of the host's accesses to pinned memory. Pinned memory faults when the host
// touches a page for the first time since a queue was at work or was enqueued work on that page;
// the fault handler records the access and lets it continue. The next call that enqueues work
// throws Bug for a race. A race that no call reports ends the program.
//
// During a recording (queue.h):
// - Device memory is neither allocated nor freed.
// - The host thread writes no pinned memory, and reads none that queues write.
// A violation throws Bug, at the latest when the recording ends. Replays are checked like calls. A
// replay that uses memory freed since the recording throws Bug.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "src/core/device.h"
#include "tests/simt/queue.h"
#include "tests/simt/races.h"

namespace espalier::simt {

class SimulatedDevice;

/// Allocations by address. Each has its own pages and a guard page behind them.
class Pages : public MemorySource {
 public:
  enum class Kind : uint8_t { device, pinned };
  Pages(SimulatedDevice& device, Kind kind) : device_(device), kind_(kind) {}
  ~Pages() override;
  void* allocate(size_t bytes) override;
  void free(void* data, size_t bytes) noexcept override;
  size_t available() override { return reported_; }
  /// Limits the memory to `bytes` and reports `reported` bytes of it as free.
  void limit(size_t bytes, size_t reported) {
    most_ = bytes;
    reported_ = reported;
  }
  /// Whether queues are at work. While they are, an allocation opens at its first access
  /// (let_work); all close together at the end.
  void set_open(bool open) noexcept;
  /// Opens the allocation at a faulting address if queues are at work.
  bool let_work(const void* address) noexcept;
  bool holds(const void* address) const { return number_of(address) > 0; }
  /// Number of the allocation that holds the address, from 1; 0: none.
  int64_t number_of(const void* address) const;
  /// Makes the host's next access to this address fault.
  void watch(const void* address, bool written) noexcept;
  void watch_all() noexcept { set_open(open_); }
  /// Opens the memory of this address and calls `access`; false: the address is not in these pages.
  bool let(const void* address, const std::function<void()>& access);
  /// Lets the access that faulted at a host address continue; false: the address is not in these
  /// pages.
  bool let_host(const void* address, bool writes) noexcept;
  /// Whether a queue has written there.
  bool written(const void* address) const;

 private:
  struct Block {
    std::byte* base = nullptr;
    size_t bytes = 0;  ///< whole pages, without the guard page
    int64_t number = 0;
    bool written = false;  ///< by a queue
    bool opened = false;   ///< some page is accessible
  };
  void open(Block& block) noexcept;
  void close(Block& block) noexcept;
  /// Null if no allocation holds the address.
  Block* find(const void* address) const;

  SimulatedDevice& device_;
  Kind kind_;
  mutable std::mutex mutex_;  ///< other ranks' threads read messages
  bool open_ = false;
  int64_t made_ = 0;
  size_t most_ = SIZE_MAX, reported_ = SIZE_MAX, used_ = 0;  ///< bytes
  mutable std::map<const void*, Block> blocks_;  ///< by the address returned to the caller
  std::vector<Block*> opened_;
};

class GuardedQueue final : public Queue {
 public:
  GuardedQueue(SimulatedDevice& device, Order order);
  ~GuardedQueue() override;
  void synchronize() override;
  void copy(void* to, const void* from, size_t bytes) override;
  void fill(void* to, int byte, size_t bytes) override;
  Mark mark() override;
  bool passed(Mark mark) override;
  void wait(Mark mark) override;
  std::unique_ptr<espalier::Queue> make_queue() override;
  void follow(espalier::Queue& other, Mark mark) override;
  bool begin_recording() override;
  std::unique_ptr<Recording> end_recording() override;
  std::string device_id() const override;

  /// Memory that the next task reads and writes. Throws Bug for a race.
  void operation(const std::string& name, std::vector<Touch> touches);
  RaceDetector::Actor actor() const { return actor_; }
  SimulatedDevice& device() { return device_; }
  /// Throws Bug unless kernels may use this address; null is allowed.
  void require_known(const void* address, const char* what) const;

 private:
  explicit GuardedQueue(const GuardedQueue& first);
  void begin_work() override;
  void end_work() noexcept override;

  SimulatedDevice& device_;
  RaceDetector::Actor actor_;
};

/// Advances the queues of all devices that this thread created: a device makes progress while its
/// host waits for ranks whose devices wait for this device's messages.
void drive_queues();

/// memcpy for a transport that also accepts device memory (ThreadOptions::copy). The race detector
/// records it as an access of the host.
void copy_anywhere(void* to, const void* from, size_t bytes);

class SimulatedDevice final : public Device {
 public:
  explicit SimulatedDevice(Order order = Order::ascending);
  /// A device with `bytes` of memory that reports `reported` of it as free.
  SimulatedDevice(size_t bytes, size_t reported) : SimulatedDevice() {
    memory_.limit(bytes, reported);
  }
  ~SimulatedDevice() override;
  Pages& memory() override { return memory_; }
  Pages& pinned() override { return pinned_; }
  espalier::Queue& queue() override { return *first_; }

  RaceDetector& detector() { return detector_; }
  std::span<GuardedQueue* const> queues() const { return queues_; }
  /// From now on calls do not throw races: the test reads the reports.
  void collect_races() { throws_ = false; }

  // Members used by its queues and its memory.

  /// Registers a queue of the device and names it, until the queue is removed.
  RaceDetector::Actor add(GuardedQueue& queue);
  void take_away(GuardedQueue& queue);
  /// Records zeroes written in the order of the first queue; the others follow it.
  void zeroed(void* data, size_t bytes);
  /// Throws Bug for a race, unless they are collected.
  void tell_races();
  void begin_recording();
  /// Forbidden action during the recording; null: none.
  const char* end_recording();
  bool recording() const { return recording_; }
  /// Records an action that the end of the recording reports.
  void note_outside(const char* what) noexcept;
  /// Number of the allocation that holds it, device or pinned.
  int64_t number_of(const void* address) const;
  /// Permits an access that faulted: of a queue's work, or of the host to pinned memory, which it
  /// records; false: the access is forbidden.
  bool touched(const void* address, bool writes);
  /// If this is device memory, calls `access` and records it as the host's.
  bool transport_touches(const void* data, size_t bytes, bool writes,
                         const std::function<void()>& access);
  /// Opens and closes memory around work; queues may run nested in each other.
  void begin_work();
  void end_work() noexcept;
  /// Waits for all queues.
  void finish() noexcept;

 private:
  bool throws_ = true;
  int at_work_ = 0;
  int made_ = 0;  ///< queues
  bool recording_ = false;
  std::thread::id recorder_;
  const char* outside_ = nullptr;  ///< forbidden action during a recording
  RaceDetector detector_;
  std::vector<GuardedQueue*> queues_;
  Pages memory_{*this, Pages::Kind::device};
  Pages pinned_{*this, Pages::Kind::pinned};
  std::unique_ptr<GuardedQueue> first_;
};

/// Fault injection: skips call number `number` (from 0) of `follow`, counted over all devices since
/// the last `forget_follow`; -1: none.
void forget_follow(int64_t number);
/// Calls of `follow` since the last `forget_follow`.
int64_t follows();

}  // namespace espalier::simt
