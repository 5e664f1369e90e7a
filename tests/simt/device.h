#pragma once
// A device that is not there, for tests of who touches what, and when: a queue that does its work when
// somebody waits (queue.h), memory that faults unless the queue is at work, and pinned memory. A host
// that reads or writes an array of the device is a crash, one that does not wait finds old numbers, and
// memory is given back only when the queue is empty, after which it is gone. Polling alone brings
// the queue forward, too: a task for every few questions. Queues beside the first share its memory.
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "src/core/device.h"
#include "tests/simt/queue.h"

namespace espalier::simt {

/// Allocations by address, each of pages of its own, and with a page behind it that nobody may touch.
class Pages : public MemorySource {
 public:
  /// `queues`: those that use it.
  Pages(const std::vector<Queue*>& queues, bool guarded) : queues_(queues), guarded_(guarded) {}
  ~Pages() override;
  void* allocate(size_t bytes) override;
  void free(void* data, size_t bytes) noexcept override;
  size_t available() override { return told_; }
  /// As much memory as `bytes` from now on, of which it says that `told` is free.
  void limit(size_t bytes, size_t told) {
    most_ = bytes;
    told_ = told;
  }
  /// Whether the memory may be touched.
  void set_open(bool open) noexcept;
  bool holds(const void* address) const;

 private:
  struct Block {
    std::byte* base = nullptr;
    size_t bytes = 0;  ///< of whole pages, without the last
  };
  void protect(const Block& block) const noexcept;

  const std::vector<Queue*>& queues_;
  bool guarded_;
  bool open_ = false;
  size_t most_ = SIZE_MAX, told_ = SIZE_MAX, used_ = 0;  ///< bytes
  std::map<const void*, Block> blocks_;                  ///< by what was handed out
};

/// What the queues of a device share.
struct DeviceMemory {
  std::vector<Queue*> queues;
  int at_work = 0;  ///< queues: one may bring another forward
  Pages memory{queues, true};
  Pages pinned{queues, false};
};

class GuardedQueue final : public Queue {
 public:
  explicit GuardedQueue(Order order);
  ~GuardedQueue() override;
  std::unique_ptr<espalier::Queue> beside() override;
  std::string device_id() const override;
  /// Throws Bug unless kernels may use this address; none is fine.
  void require_known(const void* address, const char* what) const;
  DeviceMemory& of_device() { return *shared_; }

 private:
  GuardedQueue(const GuardedQueue& first, Order order);
  void begin_work() override;
  void end_work() noexcept override;

  std::shared_ptr<DeviceMemory> shared_;
};

/// Does what queues beside others, of devices that this thread made, can do: a device goes on while its host
/// waits for other ranks, whose devices wait for its messages.
void drive_queues_beside();

class PretendedDevice final : public Device {
 public:
  explicit PretendedDevice(Order order = Order::ascending) : queue_(order) {}
  /// Of so little memory, of which it says that `told` is free.
  PretendedDevice(size_t bytes, size_t told) : queue_(Order::ascending) {
    queue_.of_device().memory.limit(bytes, told);
  }
  MemorySource& memory() override { return queue_.of_device().memory; }
  MemorySource& pinned() override { return queue_.of_device().pinned; }
  espalier::Queue& queue() override { return queue_; }

 private:
  GuardedQueue queue_;
};

}  // namespace espalier::simt
