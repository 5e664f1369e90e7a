#include "tests/simt/device.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>

namespace espalier::simt {
namespace {

constexpr size_t kAlignment = 64;

// Runs before any thread begins: a real NCCL cannot use these devices. Tests name a replacement.
[[maybe_unused]] const int no_nccl = setenv("ESPALIER_NCCL_LIBRARY", "none", 0);

std::vector<Queue*>& queues_of_thread() {
  thread_local std::vector<Queue*> queues;
  return queues;
}

size_t page() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

using Bytes = std::vector<std::byte>;

std::atomic<int64_t> followed = 0, forgotten = -1;

/// The devices whose pinned memory is watched.
struct Watch {
  std::mutex mutex;
  std::vector<SimulatedDevice*> devices;
  struct sigaction before = {};
};
Watch& watch() {
  static Watch all;
  return all;
}

/// On other machines a first access counts as a read, and the page opens for both.
bool is_write([[maybe_unused]] void* context) {
#if defined(__x86_64__)
  constexpr greg_t kWrite = 2;
  return (static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & kWrite) != 0;
#else
  return false;
#endif
}

/// Runs on the thread of a queue's work or of the host during its own access, which holds no lock
/// of this file.
void on_fault(int, siginfo_t* about, void* context) {
  {
    const std::lock_guard lock(watch().mutex);
    for (SimulatedDevice* device : watch().devices) {
      if (device->touched(about->si_addr, is_write(context))) {
        return;
      }
    }
  }
  sigaction(SIGSEGV, &watch().before, nullptr);  // the access is repeated and crashes
}

/// A stack for the handler of faults: kernels of libraries may point the stack register elsewhere.
struct FaultStack {
  static constexpr size_t kBytes = size_t{1} << 18;
  std::unique_ptr<std::byte[]> memory = std::make_unique<std::byte[]>(kBytes);
  stack_t before = {};

  FaultStack() {
    stack_t own = {};
    own.ss_sp = memory.get();
    own.ss_size = kBytes;
    sigaltstack(&own, &before);
  }
  ~FaultStack() { sigaltstack(&before, nullptr); }
};

void add_to_watch(SimulatedDevice* device) {
  const std::lock_guard lock(watch().mutex);
  if (watch().devices.empty()) {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &watch().before);
  }
  watch().devices.push_back(device);
}

void take_from_watch(SimulatedDevice* device) {
  const std::lock_guard lock(watch().mutex);
  std::erase(watch().devices, device);
  if (watch().devices.empty()) {
    sigaction(SIGSEGV, &watch().before, nullptr);
  }
}

/// An access by neither the host nor a queue: by a transport that accepts memory of any device.
void touch_memory(const void* data, size_t bytes, bool writes,
                  const std::function<void()>& access) {
  {
    const std::lock_guard lock(watch().mutex);
    for (SimulatedDevice* device : watch().devices) {
      if (device->transport_touches(data, bytes, writes, access)) {
        return;
      }
    }
  }
  access();  // may fault
}

}  // namespace

void forget_follow(int64_t number) {
  followed = 0;
  forgotten = number;
}

int64_t follows() { return followed; }

Pages::~Pages() {
  for (const auto& [data, block] : blocks_) {
    munmap(block.base, block.bytes + page());
  }
}

void Pages::open(Block& block) noexcept {
  mprotect(block.base, block.bytes, PROT_READ | PROT_WRITE);
  if (!block.opened) {
    block.opened = true;
    opened_.push_back(&block);
  }
}

void Pages::close(Block& block) noexcept {
  if (block.opened) {
    mprotect(block.base, block.bytes, PROT_NONE);
    block.opened = false;
    std::erase(opened_, &block);
  }
}

void* Pages::allocate(size_t bytes) {
  require(!device_.recording(), "no memory is taken while calls are recorded", bytes);
  if (bytes > most_ || used_ > most_ - bytes) {
    return nullptr;
  }
  Block block;
  block.bytes = (std::max<size_t>(bytes, 1) + page() - 1) / page() * page();
  void* base = mmap(nullptr, block.bytes + page(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return nullptr;
  }
  used_ += bytes;
  block.base = static_cast<std::byte*>(base);
  void* data = block.base + (block.bytes - bytes) / kAlignment * kAlignment;
  {
    const std::lock_guard lock(mutex_);
    block.number = ++made_;
    blocks_[data] = block;
  }
  if (kind_ == Kind::device) {
    device_.zeroed(data, bytes);
  }
  return data;
}

void Pages::free(void* data, size_t bytes) noexcept {
  used_ -= bytes;
  device_.note_outside("memory was given back");
  device_.finish();
  device_.detector().forget(data, bytes);
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(data);
  if (found != blocks_.end()) {
    std::erase(opened_, &found->second);
    munmap(found->second.base, found->second.bytes + page());
    blocks_.erase(found);
  }
}

void Pages::set_open(bool open) noexcept {
  const std::lock_guard lock(mutex_);
  open_ = open;
  while (!open_ && !opened_.empty()) {
    close(*opened_.back());
  }
}

bool Pages::let_work(const void* address) noexcept {
  const std::lock_guard lock(mutex_);
  Block* block = open_ ? find(address) : nullptr;
  if (block == nullptr || address == block->base + block->bytes) {
    return false;
  }
  open(*block);
  return true;
}

Pages::Block* Pages::find(const void* address) const {
  const auto next = blocks_.upper_bound(address);
  if (next == blocks_.begin()) {
    return nullptr;
  }
  Block& block = std::prev(next)->second;
  // The address one past the last element is valid, but not readable.
  return static_cast<const std::byte*>(address) <= block.base + block.bytes ? &block : nullptr;
}

int64_t Pages::number_of(const void* address) const {
  const std::lock_guard lock(mutex_);
  const Block* block = find(address);
  return block != nullptr ? block->number : 0;
}

void Pages::watch(const void* address, bool written) noexcept {
  const std::lock_guard lock(mutex_);
  Block* block = find(address);
  if (block != nullptr) {
    block->written = block->written || written;
    if (!open_) {
      close(*block);
    }
  }
}

bool Pages::written(const void* address) const {
  const std::lock_guard lock(mutex_);
  const Block* block = find(address);
  return block != nullptr && block->written;
}

bool Pages::let(const void* address, const std::function<void()>& access) {
  const std::lock_guard lock(mutex_);
  Block* block = find(address);
  if (block == nullptr) {
    return false;
  }
  open(*block);
  access();
  if (!open_) {
    close(*block);
  }
  return true;
}

bool Pages::let_host(const void* address, bool writes) noexcept {
  const std::lock_guard lock(mutex_);
  Block* block = find(address);
  if (block == nullptr || address == block->base + block->bytes) {
    return false;
  }
  const size_t place = static_cast<size_t>(static_cast<const std::byte*>(address) - block->base);
  mprotect(block->base + place / page() * page(), page(),
           writes || open_ ? PROT_READ | PROT_WRITE : PROT_READ);
  if (!block->opened) {
    block->opened = true;
    opened_.push_back(block);
  }
  return true;
}

GuardedQueue::GuardedQueue(SimulatedDevice& device, Order order)
    : Queue(order), device_(device), actor_(device.add(*this)) {
  queues_of_thread().push_back(this);
}

GuardedQueue::GuardedQueue(const GuardedQueue& first)
    : Queue(first, first.order()), device_(first.device_), actor_(device_.add(*this)) {
  queues_of_thread().push_back(this);
}

GuardedQueue::~GuardedQueue() {
  device_.take_away(*this);
  std::erase(queues_of_thread(), this);
}

void drive_queues() {
  for (Queue* queue : queues_of_thread()) {
    queue->advance(queue->enqueued());
  }
}

void copy_anywhere(void* to, const void* from, size_t bytes) {
  Bytes between(bytes);
  touch_memory(from, bytes, false, [&] { std::memcpy(between.data(), from, bytes); });
  touch_memory(to, bytes, true, [&] { std::memcpy(to, between.data(), bytes); });
}

std::unique_ptr<espalier::Queue> GuardedQueue::make_queue() {
  return std::unique_ptr<espalier::Queue>(new GuardedQueue(*this));
}

std::string GuardedQueue::device_id() const {
  return fmt::format("simulated {}", fmt::ptr(&device_));
}

void GuardedQueue::operation(const std::string& name, std::vector<Touch> touches) {
  if (recording()) {
    std::vector<int64_t> numbers;
    for (const Touch& touch : touches) {
      numbers.push_back(device_.number_of(touch.data));
    }
    keep([this, name, touches, numbers] {
      for (size_t i = 0; i < touches.size(); ++i) {
        require(device_.number_of(touches[i].data) == numbers[i],
                "memory of a recorded call was given back", name, touches[i].operand);
      }
      operation(name, touches);
    });
    return;
  }
  std::erase_if(touches, [&](const Touch& touch) {
    return touch.data == nullptr || touch.bytes == 0 || touch.rows == 0 ||
           !(device_.memory().holds(touch.data) || device_.pinned().holds(touch.data));
  });
  device_.detector().operation(actor_, name, touches);
  for (const Touch& touch : touches) {
    device_.pinned().watch(touch.data, touch.writes);
  }
  device_.tell_races();
}

void GuardedQueue::synchronize() {
  require(!device_.recording(), "a device whose calls are recorded cannot be waited for");
  Queue::synchronize();
  device_.detector().synchronized(actor_);
}

void GuardedQueue::copy(void* to, const void* from, size_t bytes) {
  operation("a copy", {{.operand = "its source", .data = from, .bytes = bytes, .reads = true},
                       {.operand = "its target", .data = to, .bytes = bytes, .writes = true}});
  Queue::copy(to, from, bytes);
}

void GuardedQueue::fill(void* to, int byte, size_t bytes) {
  operation("a fill", {{.operand = "memory", .data = to, .bytes = bytes, .writes = true}});
  Queue::fill(to, byte, bytes);
}

Mark GuardedQueue::mark() {
  const Mark mark = Queue::mark();
  if (recording()) {
    return mark;
  }
  device_.detector().marked(actor_, mark);
  return mark;
}

bool GuardedQueue::passed(Mark mark) {
  require(!device_.recording(), "a mark of a device whose calls are recorded cannot be queried");
  const bool has = Queue::passed(mark);
  if (has) {
    device_.detector().waited(actor_, mark);
  }
  return has;
}

void GuardedQueue::wait(Mark mark) {
  require(!device_.recording(), "a device whose calls are recorded cannot be waited for");
  Queue::wait(mark);
  device_.detector().waited(actor_, mark);
}

void GuardedQueue::follow(espalier::Queue& other, Mark mark) {
  auto& guarded = dynamic_cast<GuardedQueue&>(other);
  if (recording() || guarded.recording()) {  // counted at its replay
    Queue::follow(other, mark);
  } else if (followed++ != forgotten) {
    device_.detector().followed(actor_, guarded.actor(), mark);
    Queue::follow(other, mark);
  }
}

bool GuardedQueue::begin_recording() {
  device_.begin_recording();
  return Queue::begin_recording();
}

std::unique_ptr<Recording> GuardedQueue::end_recording() {
  const char* const outside = device_.end_recording();
  std::unique_ptr<Recording> made = Queue::end_recording();
  require(outside == nullptr, "while calls are recorded nothing else happens",
          outside != nullptr ? outside : "");
  return made;
}

void GuardedQueue::require_known(const void* address, const char* what) const {
  require(address == nullptr || device_.memory().holds(address) || device_.pinned().holds(address),
          "kernels of a device get addresses in its memory or in pinned memory", what);
}

void GuardedQueue::begin_work() { device_.begin_work(); }
void GuardedQueue::end_work() noexcept { device_.end_work(); }

SimulatedDevice::SimulatedDevice(Order order)
    : first_(std::make_unique<GuardedQueue>(*this, order)) {
  add_to_watch(this);
}

SimulatedDevice::~SimulatedDevice() {
  take_from_watch(this);
  const std::vector<std::string> untold = detector_.take_reports();
  if (throws_ && !untold.empty()) {
    std::fprintf(stderr, "%s\n", untold.front().c_str());
    std::abort();
  }
}

RaceDetector::Actor SimulatedDevice::add(GuardedQueue& queue) {
  queues_.push_back(&queue);
  return detector_.add(++made_ == 1 ? "the first queue" : fmt::format("queue {}", made_));
}

void SimulatedDevice::take_away(GuardedQueue& queue) { std::erase(queues_, &queue); }

void SimulatedDevice::zeroed(void* data, size_t bytes) {
  const RaceDetector::Actor first = first_->actor();
  detector_.operation(first, "the zeroing of new memory",
                      {{.operand = "it", .data = data, .bytes = bytes, .writes = true}});
  const Mark mark = first_->mark();
  for (const GuardedQueue* queue : queues_) {
    if (queue->actor() != first) {
      detector_.followed(queue->actor(), first, mark);
    }
  }
}

void SimulatedDevice::tell_races() {
  if (throws_) {
    const std::vector<std::string> races = detector_.take_reports();
    if (!races.empty()) {
      throws_ =
          false;  // one report is enough: races that follow would throw while this one propagates
      throw Bug(races.front());
    }
  }
}

bool SimulatedDevice::transport_touches(const void* data, size_t bytes, bool writes,
                                        const std::function<void()>& access) {
  if (!memory_.let(data, access)) {
    return false;
  }
  detector_.operation(
      RaceDetector::kHost, "a transport",
      {{.operand = "a message", .data = data, .bytes = bytes, .reads = !writes, .writes = writes}});
  return true;
}

bool SimulatedDevice::touched(const void* address, bool writes) {
  if (memory_.let_work(address) || pinned_.let_work(address)) {
    return true;  // by a queue's work
  }
  if (!pinned_.let_host(address, writes)) {
    return false;
  }
  if (writes || pinned_.written(address)) {
    note_outside("the host touched pinned memory");
  }
  detector_.operation(RaceDetector::kHost, writes ? "a write" : "a read",
                      {{.operand = "pinned memory",
                        .data = address,
                        .bytes = 1,
                        .reads = !writes,
                        .writes = writes}});
  return true;
}

void SimulatedDevice::begin_recording() {
  require(!recording_, "one recording of a device at a time");
  recording_ = true;
  recorder_ = std::this_thread::get_id();
  outside_ = nullptr;
  pinned_.watch_all();
}

const char* SimulatedDevice::end_recording() {
  recording_ = false;
  return outside_;
}

void SimulatedDevice::note_outside(const char* what) noexcept {
  if (recording_ && std::this_thread::get_id() == recorder_) {  // other threads read messages
    outside_ = what;
  }
}

int64_t SimulatedDevice::number_of(const void* address) const {
  const int64_t number = memory_.number_of(address);
  return number > 0 ? number : -pinned_.number_of(address);
}

void SimulatedDevice::begin_work() {
  thread_local const FaultStack stack;
  if (at_work_++ == 0) {
    memory_.set_open(true);
    pinned_.set_open(true);
  }
}

void SimulatedDevice::end_work() noexcept {
  if (--at_work_ == 0) {
    memory_.set_open(false);
    pinned_.set_open(false);
  }
}

void SimulatedDevice::finish() noexcept {
  for (GuardedQueue* queue : queues_) {
    try {
      if (recording_) {  // a mistake that is reported later
        queue->run_until(queue->enqueued());
      } else {
        queue->synchronize();
      }
    } catch (const Error&) {  // a caller that needs results synchronizes and gets the error
    }
  }
}

}  // namespace espalier::simt
