#include "tests/simt/engine.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/simt/async_copies.h"
#include "tests/simt/fiber.h"
#include "tests/simt/index.h"
#include "tests/simt/warp.h"

thread_local constinit uint3 threadIdx{};
thread_local constinit uint3 blockIdx{};
thread_local constinit dim3 blockDim{};
thread_local constinit dim3 gridDim{};

namespace espalier::simt {
namespace {

constexpr size_t kStackBytes = size_t{96} << 10;
constexpr unsigned kMaxBlocks = 0x7fffffffU;
constexpr unsigned kMaxAcross = 0xffffU;           ///< along y and z
constexpr size_t kSharedBytes = size_t{99} << 10;  ///< of a block, compute capability 8.6 and 8.9

uint3 unflatten(int64_t i, const Extent& extent) {
  const auto flat = static_cast<uint64_t>(i);
  return {static_cast<unsigned>(flat % extent.x), static_cast<unsigned>(flat / extent.x % extent.y),
          static_cast<unsigned>(flat / extent.x / extent.y)};
}

enum class State : uint8_t { fresh, running, at_barrier, in_warp, ready, done };

class Engine;
thread_local Engine* running = nullptr;

/// Stacks are reused from one launch to the next.
struct Worker {
  Worker(void (*entry)(void*), Engine* engine) : context(entry, engine, kStackBytes) {}
  Context context;
};

class Engine {
 public:
  void run(const Grid& grid, Order order, const std::function<void()>& body);
  void barrier();
  uint64_t warp_operation(const LaneCall& call);
  void copy_async(void* shared, const void* from, int bytes);
  AsyncCopies& copies() { return copies_[current_]; }
  std::byte* shared() { return reinterpret_cast<std::byte*>(shared_words_.data()); }

 private:
  struct Thread {
    State state = State::fresh;
    Worker* worker = nullptr;
    uint64_t result = 0;
  };

  static void begin(void* engine) { static_cast<Engine*>(engine)->work(); }
  [[noreturn]] void work();
  void run_block();
  void begin_block();
  /// Runs new threads first, then those whose wait is over; false if there is none.
  bool step();
  /// Makes a ready thread the running one; returns its context.
  Context& take(int64_t number);
  void finish();
  void wait(State state);
  int64_t next(State state);
  int64_t in_order(int64_t i) const { return order_ == Order::ascending ? i : count_ - 1 - i; }
  void set_thread(int64_t number) {
    current_ = number;
    threadIdx = indices_[number];
  }
  std::string place(int64_t number) const;
  [[noreturn]] void violate(const std::string& what);
  void report_stuck();

  Grid grid_;
  Order order_ = Order::ascending;
  const std::function<void()>* body_ = nullptr;
  int64_t count_ = 0, current_ = 0, fresh_ = 0, done_ = 0, at_barrier_ = 0, ready_ = 0;
  int64_t cursor_ =
      0;  ///< in order: position at which the search for the next ready thread continues
  std::vector<Thread> threads_;
  std::vector<uint3> indices_;       ///< of each thread
  std::vector<AsyncCopies> copies_;  ///< of each thread
  std::vector<WarpMeeting> warps_;
  std::vector<uint64_t> shared_words_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Worker*> idle_;
  Worker* active_ = nullptr;
  Context scheduler_;
  std::string violation_;
};

std::string Engine::place(int64_t number) const {
  const uint3 at = unflatten(number, grid_.threads);
  return fmt::format("kernel {}, block ({}, {}, {}), thread ({}, {}, {})", grid_.name, blockIdx.x,
                     blockIdx.y, blockIdx.z, at.x, at.y, at.z);
}

/// Ends the block from within a fiber, which is never switched to again.
void Engine::violate(const std::string& what) {
  violation_ = place(current_) + " " + what;
  Context::switch_to(active_->context, scheduler_);
  __builtin_trap();
}

void Engine::work() {
  for (;;) {
    while (fresh_ < count_) {
      const int64_t number = in_order(fresh_++);
      Thread& thread = threads_[number];
      thread.state = State::running;
      thread.worker = active_;
      set_thread(number);
      (*body_)();
      finish();
    }
    idle_.push_back(active_);
    Context::switch_to(active_->context, scheduler_);
  }
}

void Engine::finish() {
  threads_[current_].state = State::done;
  ++done_;
  if (at_barrier_ > 0) {
    violate("leaves while others wait at __syncthreads");
  }
  if (!copies().none()) {
    violate("leaves before its asynchronous copies have arrived");
  }
  WarpMeeting& warp = warps_[current_ / 32];
  warp.leave(static_cast<int>(current_ % 32));
  if (const std::string wrong = warp.wrong(); !wrong.empty()) {
    violate(wrong);
  }
}

void Engine::wait(State state) {
  threads_[current_].state = state;
  const int64_t number = current_;
  Worker& own = *active_;
  const bool others = fresh_ == count_ && ready_ > 0;
  Context::switch_to(own.context, others ? take(next(State::ready)) : scheduler_);
  set_thread(number);
}

void Engine::barrier() {
  if (done_ > 0) {
    violate("waits at __syncthreads, where others have left");
  }
  if (++at_barrier_ < count_) {
    wait(State::at_barrier);
    return;
  }
  at_barrier_ = 0;
  for (int64_t i = 0; i < count_; ++i) {
    threads_[i].state = State::ready;
  }
  threads_[current_].state = State::running;
  ready_ = count_ - 1;
}

uint64_t Engine::warp_operation(const LaneCall& call) {
  const auto lane = static_cast<int>(current_ % 32);
  const int64_t first = current_ - lane;
  WarpMeeting& warp = warps_[current_ / 32];
  const unsigned met = warp.arrive(lane, call);
  if (const std::string wrong = warp.wrong(); !wrong.empty()) {
    violate(wrong);
  }
  if (met == 0) {
    wait(State::in_warp);
    return threads_[current_].result;
  }
  for (int i = 0; i < 32; ++i) {
    if ((met >> i & 1U) != 0) {
      Thread& thread = threads_[first + i];
      thread.result = warp.result(i);
      if (i != lane) {
        thread.state = State::ready;
        ++ready_;
      }
    }
  }
  return threads_[current_].result;
}

void Engine::copy_async(void* shared, const void* from, int bytes) {
  const auto addresses = reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(from);
  if (addresses % 16 != 0 || bytes < 0 || bytes > 16) {
    violate(fmt::format("copies {} bytes, from {} to {}: 0 to 16, between addresses at 16 bytes",
                        bytes, from, shared));
  }
  copies().copy(shared, from, bytes);
}

int64_t Engine::next(State state) {
  for (int64_t i = 0; i < count_; ++i, cursor_ = (cursor_ + 1) % count_) {
    const int64_t number = in_order(cursor_);
    if (threads_[number].state == state) {
      return number;
    }
  }
  return -1;
}

Context& Engine::take(int64_t number) {
  Thread& thread = threads_[number];
  thread.state = State::running;
  --ready_;
  active_ = thread.worker;
  return active_->context;
}

bool Engine::step() {
  if (fresh_ < count_) {
    if (idle_.empty()) {
      workers_.push_back(std::make_unique<Worker>(&Engine::begin, this));
      idle_.push_back(workers_.back().get());
    }
    active_ = idle_.back();
    idle_.pop_back();
    Context::switch_to(scheduler_, active_->context);
    return true;
  }
  if (ready_ == 0) {
    return false;
  }
  Context::switch_to(scheduler_, take(next(State::ready)));
  return true;
}

void Engine::report_stuck() {
  const auto waits = [](const Thread& t) { return t.state != State::done; };
  const auto found = std::find_if(threads_.begin(), threads_.end(), waits);
  violation_ = place(found - threads_.begin()) +
               (found->state == State::at_barrier ? " waits at __syncthreads"
                                                  : " waits for lanes of its warp") +
               " for threads that wait elsewhere";
}

void Engine::begin_block() {
  threads_.assign(static_cast<size_t>(count_), Thread{});
  warps_.clear();
  for (AsyncCopies& copies : copies_) {
    copies.forget();
  }
  for (int64_t first = 0; first < count_; first += 32) {
    warps_.emplace_back(static_cast<int>(std::min<int64_t>(32, count_ - first)));
  }
  std::fill(shared_words_.begin(), shared_words_.end(), ~uint64_t{0});
  fresh_ = done_ = at_barrier_ = ready_ = cursor_ = 0;
}

void Engine::run_block() {
  begin_block();
  while (violation_.empty() && done_ < count_) {
    if (!step()) {
      report_stuck();
    }
  }
  if (!violation_.empty()) {
    // Their stacks hold unfinished work; a new engine begins with new stacks.
    const std::string what = std::move(violation_);
    violation_.clear();
    idle_.clear();
    workers_.clear();
    throw Violation(what);
  }
}

void Engine::run(const Grid& grid, Order order, const std::function<void()>& body) {
  grid_ = grid;
  order_ = order;
  body_ = &body;
  count_ = grid.threads.count();
  indices_.clear();
  copies_.resize(static_cast<size_t>(count_));
  for (int64_t i = 0; i < count_; ++i) {
    indices_.push_back(unflatten(i, grid.threads));
  }
  blockDim = dim3(grid.threads.x, grid.threads.y, grid.threads.z);
  gridDim = dim3(grid.blocks.x, grid.blocks.y, grid.blocks.z);
  // Dynamic shared memory ends at the end of an allocation, so the sanitizer finds accesses beyond
  // it.
  shared_words_.assign((grid.shared_bytes + 7) / 8, 0);
  shared_words_.shrink_to_fit();
  const int64_t blocks = grid.blocks.count();
  for (int64_t i = 0; i < blocks; ++i) {
    blockIdx = unflatten(order == Order::ascending ? i : blocks - 1 - i, grid.blocks);
    run_block();
  }
}

Engine& engine() {
  thread_local const std::unique_ptr<Engine> made = std::make_unique<Engine>();
  return *made;
}

}  // namespace

void run_grid(const Grid& grid, Order order, const std::function<void()>& body) {
  require(running == nullptr, "kernels do not start kernels", grid.name);
  require(grid.threads.count() >= 1 && grid.threads.count() <= 1024,
          "a block has 1 to 1024 threads", grid.name, grid.threads.count());
  require(grid.blocks.x <= kMaxBlocks && grid.blocks.y <= kMaxAcross && grid.blocks.z <= kMaxAcross,
          "a grid has at most 2^31 - 1 x 65535 x 65535 blocks", grid.name);
  require(grid.shared_bytes <= kSharedBytes, "a block has at most 99 KiB of shared memory",
          grid.name, grid.shared_bytes);
  running = &engine();
  struct Reset {
    ~Reset() { running = nullptr; }
  } const reset;
  running->run(grid, order, body);
}

void barrier() { running->barrier(); }

uint64_t warp_operation(WarpOp op, unsigned mask, uint64_t value, unsigned argument, int width) {
  return running->warp_operation(
      {.op = op, .mask = mask, .value = value, .argument = argument, .width = width});
}

void together(Together work, void* mine) {
  running->warp_operation(
      {.op = WarpOp::together, .mask = 0xffffffffU, .work = work, .mine = mine});
}

void copy_async(void* shared, const void* from, int bytes) {
  running->copy_async(shared, from, bytes);
}
void commit_copies() { running->copies().commit(); }
void wait_copies(int later) { running->copies().wait(later); }

std::byte* dynamic_shared_memory() { return running->shared(); }

}  // namespace espalier::simt
