#include "tests/simt/device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace espalier::simt {
namespace {

constexpr size_t kAlignment = 64;

// Before any thread begins: a real NCCL has no business with these devices. Tests name a stand-in.
[[maybe_unused]] const int no_nccl = setenv("ESPALIER_NCCL_LIBRARY", "none", 0);

std::vector<Queue*>& queues_beside() {
  thread_local std::vector<Queue*> queues;
  return queues;
}

size_t page() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

Pages::~Pages() {
  for (const auto& [data, block] : blocks_) {
    munmap(block.base, block.bytes + page());
  }
}

void Pages::protect(const Block& block) const noexcept {
  mprotect(block.base, block.bytes, open_ || !guarded_ ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void* Pages::allocate(size_t bytes) {
  if (bytes > most_ || used_ > most_ - bytes) {
    return nullptr;
  }
  used_ += bytes;
  Block block;
  block.bytes = (std::max<size_t>(bytes, 1) + page() - 1) / page() * page();
  void* base = mmap(nullptr, block.bytes + page(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return nullptr;
  }
  block.base = static_cast<std::byte*>(base);
  protect(block);
  void* data = block.base + (block.bytes - bytes) / kAlignment * kAlignment;
  blocks_[data] = block;
  return data;
}

void Pages::free(void* data, size_t bytes) noexcept {
  used_ -= bytes;
  for (Queue* queue : queues_) {
    try {
      queue->synchronize();
    } catch (const Error&) {  // whoever needs results synchronizes, and was told
    }
  }
  const auto found = blocks_.find(data);
  if (found != blocks_.end()) {
    munmap(found->second.base, found->second.bytes + page());
    blocks_.erase(found);
  }
}

void Pages::set_open(bool open) noexcept {
  open_ = open;
  for (const auto& [data, block] : blocks_) {
    protect(block);
  }
}

bool Pages::holds(const void* address) const {
  const auto next = blocks_.upper_bound(address);
  if (next == blocks_.begin()) {
    return false;
  }
  const Block& block = std::prev(next)->second;
  // One behind the last element may be named, not read.
  return static_cast<const std::byte*>(address) <= block.base + block.bytes;
}

GuardedQueue::GuardedQueue(Order order) : Queue(order), shared_(std::make_shared<DeviceMemory>()) {
  shared_->queues.push_back(this);
}

GuardedQueue::GuardedQueue(const GuardedQueue& first, Order order)
    : Queue(first, order), shared_(first.shared_) {
  shared_->queues.push_back(this);
  queues_beside().push_back(this);
}

GuardedQueue::~GuardedQueue() {
  std::erase(shared_->queues, this);
  std::erase(queues_beside(), this);
}

void drive_queues_beside() {
  for (Queue* queue : queues_beside()) {
    queue->advance(queue->asked());
  }
}

std::unique_ptr<espalier::Queue> GuardedQueue::beside() {
  return std::unique_ptr<espalier::Queue>(new GuardedQueue(*this, order()));
}

std::string GuardedQueue::device_id() const {
  return fmt::format("pretended {}", fmt::ptr(shared_.get()));
}

void GuardedQueue::begin_work() {
  if (shared_->at_work++ == 0) {
    shared_->memory.set_open(true);
  }
}

void GuardedQueue::end_work() noexcept {
  if (--shared_->at_work == 0) {
    shared_->memory.set_open(false);
  }
}

void GuardedQueue::require_known(const void* address, const char* what) const {
  const auto& [queues, at_work, memory, pinned] = *shared_;
  require(address == nullptr || memory.holds(address) || pinned.holds(address),
          "kernels of a device get addresses in its memory or in pinned memory", what);
}

}  // namespace espalier::simt
