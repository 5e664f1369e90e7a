#pragma once
// A device that is not there, for tests of who touches what, and when: queues that do their work
// when somebody waits (queue.h), memory that faults unless a queue is at work, and pinned memory. A
// host that reads or writes an array of the device is a crash, one that does not wait finds old
// numbers, and memory is given back only when all queues are empty, after which it is gone. Polling
// alone brings a queue forward, too: a task for every few questions. Queues beside the first share
// its memory.
//
// Whether all of that is ordered is watched as well (races.h): operations, copies and fills of all
// queues, marks and waits, and what the host does with pinned memory. That faults, too, when the
// host touches a page for the first time since a queue was at work, or was asked for something
// there; the fault notes the access, and lets it go on. A race throws Bug from the next call that
// asks a queue for something; one that nobody heard of ends the program.
//
// While calls are recorded (queue.h), memory of the device is neither taken nor given back, and the
// host's thread writes no pinned memory, and reads none that queues write: else a Bug, at the latest
// at the recording's end. A replay is watched as calls are; where memory of one of its calls was
// given back since, it is a Bug.
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

class PretendedDevice;

/// Allocations by address, each of pages of its own, and with a page behind it that nobody may
/// touch.
class Pages : public MemorySource {
 public:
  enum class Kind : uint8_t { device, pinned };
  Pages(PretendedDevice& device, Kind kind) : device_(device), kind_(kind) {}
  ~Pages() override;
  void* allocate(size_t bytes) override;
  void free(void* data, size_t bytes) noexcept override;
  size_t available() override { return told_; }
  /// As much memory as `bytes` from now on, of which it says that `told` is free.
  void limit(size_t bytes, size_t told) {
    most_ = bytes;
    told_ = told;
  }
  /// Whether queues are at work.
  void set_open(bool open) noexcept;
  bool holds(const void* address) const { return number_of(address) > 0; }
  /// Of the allocation that holds it, from 1 on; 0: none.
  int64_t number_of(const void* address) const;
  /// The next time that the host touches this is a fault.
  void watch(const void* address, bool written) noexcept;
  void watch_all() noexcept { set_open(open_); }
  /// Calls `access` while the memory of this address is open; false: it is not here.
  bool let(const void* address, const std::function<void()>& access);
  /// After a fault at an address of the host's: lets it go on; false: it is not here.
  bool let_host(const void* address, bool writes) noexcept;
  /// Whether a queue has written there.
  bool written(const void* address) const;

 private:
  struct Block {
    std::byte* base = nullptr;
    size_t bytes = 0;  ///< of whole pages, without the last
    int64_t number = 0;
    bool written = false;  ///< by a queue
  };
  void protect(const Block& block) const noexcept;
  /// Null: none.
  const Block* find(const void* address) const;

  PretendedDevice& device_;
  Kind kind_;
  mutable std::mutex mutex_;  ///< other ranks' threads read messages
  bool open_ = false;
  int64_t made_ = 0;
  size_t most_ = SIZE_MAX, told_ = SIZE_MAX, used_ = 0;  ///< bytes
  std::map<const void*, Block> blocks_;                  ///< by what was handed out
};

class GuardedQueue final : public Queue {
 public:
  GuardedQueue(PretendedDevice& device, Order order);
  ~GuardedQueue() override;
  void synchronize() override;
  void copy(void* to, const void* from, size_t bytes) override;
  void fill(void* to, int byte, size_t bytes) override;
  Mark mark() override;
  bool passed(Mark mark) override;
  void wait(Mark mark) override;
  std::unique_ptr<espalier::Queue> beside() override;
  void follow(espalier::Queue& other, Mark mark) override;
  bool begin_recording() override;
  std::unique_ptr<Recording> end_recording() override;
  std::string device_id() const override;

  /// What the next task reads and writes. Throws Bug when that is a race.
  void operation(const std::string& name, std::vector<Touch> touches);
  RaceDetector::Actor actor() const { return actor_; }
  PretendedDevice& device() { return device_; }
  /// Throws Bug unless kernels may use this address; none is fine.
  void require_known(const void* address, const char* what) const;

 private:
  explicit GuardedQueue(const GuardedQueue& first);
  void begin_work() override;
  void end_work() noexcept override;

  PretendedDevice& device_;
  RaceDetector::Actor actor_;
};

/// Does what queues can do, of devices that this thread made: a device goes on while its host waits
/// for other ranks, whose devices wait for its messages.
void drive_queues();

/// As memcpy, of a transport that takes memory of any device, too (ThreadOptions::copy). The race
/// detector hears of it as of the host's access.
void copy_anywhere(void* to, const void* from, size_t bytes);

class PretendedDevice final : public Device {
 public:
  explicit PretendedDevice(Order order = Order::ascending);
  /// Of so little memory, of which it says that `told` is free.
  PretendedDevice(size_t bytes, size_t told) : PretendedDevice() { memory_.limit(bytes, told); }
  ~PretendedDevice() override;
  Pages& memory() override { return memory_; }
  Pages& pinned() override { return pinned_; }
  espalier::Queue& queue() override { return *first_; }

  RaceDetector& detector() { return detector_; }
  std::span<GuardedQueue* const> queues() const { return queues_; }
  /// From now on calls do not throw races: the test asks for them.
  void collect_races() { throws_ = false; }

  // For its queues and its memory.

  /// A name for a queue, which is one of the device's until it is taken away.
  RaceDetector::Actor add(GuardedQueue& queue);
  void take_away(GuardedQueue& queue);
  /// Zeroes are written in the order of the first queue, and the others follow it.
  void zeroed(void* data, size_t bytes);
  /// Throws Bug for a race, unless they are collected.
  void tell_races();
  void begin_recording();
  /// What was done meanwhile that was not to be; null: nothing.
  const char* end_recording();
  bool recording() const { return recording_; }
  /// While calls are recorded that is told at the end.
  void note_outside(const char* what) noexcept;
  /// Of the memory that holds it, of either kind.
  int64_t number_of(const void* address) const;
  /// Notes that the host has touched an address, and lets it; false: this is not pinned memory of
  /// here.
  bool host_touched(const void* address, bool writes);
  /// Calls `access` if this is memory of the device, and notes it as the host's.
  bool transport_touches(const void* data, size_t bytes, bool writes,
                         const std::function<void()>& access);
  /// Opens and closes memory around work; queues may be at work because of each other.
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
  const char* outside_ = nullptr;  ///< what happened beside what is recorded
  RaceDetector detector_;
  std::vector<GuardedQueue*> queues_;
  Pages memory_{*this, Pages::Kind::device};
  Pages pinned_{*this, Pages::Kind::pinned};
  std::unique_ptr<GuardedQueue> first_;
};

/// A planted mistake: of all calls of `follow`, in all devices from the last `forget_follow` on,
/// the one of this number (from 0) is forgotten; -1: none.
void forget_follow(int64_t number);
/// How many there were since.
int64_t follows();

}  // namespace espalier::simt
