#include "tests/simt/queue.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace espalier::simt {

void Event::synchronize() const {
  if (queue_ != nullptr) {
    queue_->run_until(until_);
  }
}

void Queue::enqueue(std::function<void()> task) {
  enqueue_until([work = std::move(task)] {
    work();
    return true;
  });
}

void Queue::enqueue_until(std::function<bool()> task) {
  tasks_.push_back(std::move(task));
  ++asked_;
}

bool Queue::advance(int64_t count) {
  if (done_ >= count || tasks_.empty() || at_work_) {
    return done_ >= count || tasks_.empty();
  }
  struct Work {
    Queue& queue;
    explicit Work(Queue& of) : queue(of) {
      queue.at_work_ = true;
      queue.begin_work();
    }
    ~Work() {
      queue.end_work();
      queue.at_work_ = false;
    }
  } const work(*this);
  while (done_ < count && !tasks_.empty()) {
    std::function<bool()> task = std::move(tasks_.front());
    tasks_.pop_front();
    ++done_;
    if (!task()) {
      --done_;
      tasks_.push_front(std::move(task));
      return false;
    }
  }
  return true;
}

void Queue::run_until(int64_t count) {
  constexpr int kPatience = 300;  // seconds
  const auto begin = std::chrono::steady_clock::now();
  // Each attempt opens and closes the device's pages, which other ranks of the process feel.
  std::chrono::microseconds pause(50);
  while (!advance(count)) {
    look();
    require(std::chrono::steady_clock::now() - begin < std::chrono::seconds(kPatience),
            "what a queue waits for comes some time", done_, count);
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::microseconds(1000));
  }
}

void Queue::synchronize() {
  ++synchronized_;
  waited_until_ = asked_;
  run_until(asked_);
}

bool Queue::passed(Mark mark) {
  constexpr int64_t kPatience = 8;
  if (done_ < mark && ++polls_ >= kPatience) {
    polls_ = 0;
    advance(done_ + 1);
  }
  return done_ >= mark;
}

void Queue::wait(Mark mark) {
  waited_ += done_ < mark ? 1 : 0;
  waited_until_ = std::max(waited_until_, mark);
  run_until(mark);
}

std::unique_ptr<espalier::Queue> Queue::beside() {
  return std::unique_ptr<espalier::Queue>(new Queue(*this, order_));
}

void Queue::follow(espalier::Queue& other, Mark mark) {
  auto* queue = dynamic_cast<Queue*>(&other);
  require(queue != nullptr, "queues of one kind of device");
  enqueue_until([queue, mark] { return queue->advance(mark); });
}

std::string Queue::device_id() const { return fmt::format("pretended {}", fmt::ptr(this)); }

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
  enqueue_until([event] { return event.queue_ == nullptr || event.queue_->advance(event.until_); });
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
