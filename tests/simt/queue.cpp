#include "tests/simt/queue.h"

#include <cstring>

namespace espalier::simt {

void Event::synchronize() const {
  if (queue_ != nullptr) {
    queue_->run_until(until_);
  }
}

void Queue::enqueue(std::function<void()> task) {
  tasks_.push_back(std::move(task));
  ++asked_;
}

void Queue::run_until(int64_t count) {
  if (done_ >= count || tasks_.empty()) {
    return;
  }
  struct Work {
    Queue& queue;
    explicit Work(Queue& of) : queue(of) {
      if (queue.depth_++ == 0) {
        queue.begin_work();
      }
    }
    ~Work() {
      if (--queue.depth_ == 0) {
        queue.end_work();
      }
    }
  } const work(*this);
  while (done_ < count && !tasks_.empty()) {
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    ++done_;
    task();
  }
}

void Queue::synchronize() {
  ++synchronized_;
  run_until(asked_);
}

bool Queue::passed(Mark mark) {
  constexpr int64_t kPatience = 8;
  if (done_ < mark && ++polls_ >= kPatience) {
    polls_ = 0;
    run_until(done_ + 1);
  }
  return done_ >= mark;
}

void Queue::wait(Mark mark) {
  waited_ += done_ < mark ? 1 : 0;
  run_until(mark);
}

void Queue::copy(void* to, const void* from, size_t bytes) {
  enqueue([=] { std::memcpy(to, from, bytes); });
}

void Queue::fill(void* to, int byte, size_t bytes) {
  enqueue([=] { std::memset(to, byte, bytes); });
}

void Queue::record(Event& event) {
  event.queue_ = this;
  event.until_ = asked_;
}

void Queue::wait(const Event& event) {
  enqueue([event] { event.synchronize(); });
}

const void* Queue::constant(const void* host, size_t bytes) {
  auto& made = constants_[host];
  if (made == nullptr) {
    made = std::make_unique<std::byte[]>(bytes);
    copy(made.get(), host, bytes);
  }
  return made.get();
}

}  // namespace espalier::simt
