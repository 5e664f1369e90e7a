#include "tests/simt/queue.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

namespace espalier::simt {
namespace {

// Marks of recordings are distinct from those of queues: waiting for them outside is a Bug.
constexpr Mark kRecorded = Mark{1} << 62;
std::atomic<Mark> recorded_marks = kRecorded;

std::atomic<int64_t> refused_call = -1;

}  // namespace

void refuse_recordings(int64_t call) { refused_call = call; }

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
  if (recording()) {
    ++script_->enqueued[this];
    keep([this, again = std::move(task)] { enqueue_until(again); });
    return;
  }
  tasks_.push_back(std::move(task));
  ++enqueued_;
  calls_ += replayed_ != nullptr ? 0 : 1;
}

void Queue::keep(std::function<void()> call) {
  check(static_cast<int64_t>(script_->calls.size()) != refused_call, "a planted refusal");
  script_->calls.push_back(std::move(call));
}

bool Queue::begin_recording() {
  require(!recording(), "recordings do not nest");
  kept_ = std::make_unique<Script>();
  script_ = kept_.get();
  script_->first = this;
  script_->enqueued[this] = 0;
  return true;
}

std::unique_ptr<Recording> Queue::end_recording() {
  require(kept_ != nullptr, "a recording of this queue ends");
  std::unique_ptr<Script> script = std::move(kept_);
  for (const auto& [queue, enqueued] : script->enqueued) {
    queue->script_ = nullptr;
  }
  if (refused_call >= 0) {
    return nullptr;
  }
  for (const auto& [queue, enqueued] : script->enqueued) {
    require(queue == this || script->joined[queue] == enqueued,
            "queues of a recording are followed again before its end", script->joined[queue],
            enqueued);
  }
  return script;
}

void Queue::replay(Recording& recording) {
  auto* script = dynamic_cast<Script*>(&recording);
  require(script != nullptr && script->first == this, "a recording of this queue");
  require(!this->recording(), "recordings hold no replays");
  ++calls_;
  ++replays_;
  struct Now {
    Script& script;
    explicit Now(Script& of) : script(of) { set(&of); }
    ~Now() { set(nullptr); }
    void set(Script* to) const {
      for (const auto& [queue, enqueued] : script.enqueued) {
        queue->replayed_ = to;
      }
    }
  } const now(*script);
  for (const auto& call : script->calls) {
    call();
  }
}

Mark Queue::mark() {
  if (!recording()) {
    return enqueued_;
  }
  const Mark mark = recorded_marks++;
  script_->marks[mark] = {.queue = this, .enqueued = script_->enqueued[this]};
  keep([this, mark] { replayed_->marks.at(mark).now = this->mark(); });
  return mark;
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
  // Each attempt opens and closes the device's pages, which delays other ranks of the process.
  std::chrono::microseconds pause(50);
  while (!advance(count)) {
    run_wait_hook();
    require(std::chrono::steady_clock::now() - begin < std::chrono::seconds(kPatience),
            "what a queue waits for comes some time", done_, count);
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::microseconds(1000));
  }
}

void Queue::synchronize() {
  require(!recording(), "a queue whose calls are recorded cannot be waited for");
  ++synchronized_;
  waited_until_ = enqueued_;
  run_until(enqueued_);
}

bool Queue::passed(Mark mark) {
  constexpr int64_t kPatience = 8;
  require(!recording() && mark < kRecorded, "a mark of a recording cannot be queried", mark);
  if (done_ < mark && ++polls_ >= kPatience) {
    polls_ = 0;
    advance(done_ + 1);
  }
  return done_ >= mark;
}

void Queue::wait(Mark mark) {
  require(!recording() && mark < kRecorded, "a mark of a recording cannot be waited for", mark);
  waited_ += done_ < mark ? 1 : 0;
  waited_until_ = std::max(waited_until_, mark);
  run_until(mark);
}

std::unique_ptr<espalier::Queue> Queue::make_queue() {
  return std::unique_ptr<espalier::Queue>(new Queue(*this, order_));
}

void Queue::follow(espalier::Queue& other, Mark mark) {
  auto* queue = dynamic_cast<Queue*>(&other);
  require(queue != nullptr, "queues of one kind of device");
  if (mark >= kRecorded) {
    follow_recorded(*queue, mark);
    return;
  }
  require(!recording(), "a queue whose calls are recorded follows none outside");
  enqueue_until([queue, mark] { return queue->advance(mark); });
}

/// The following queue is recorded from now on, too.
void Queue::follow_recorded(Queue& other, Mark mark) {
  require(other.recording(), "marks of recordings end with them", mark);
  require(script_ == nullptr || script_ == other.script_, "queues of one recording");
  script_ = other.script_;
  const Script::Place& place = script_->marks.at(mark);
  if (this == script_->first) {
    int64_t& joined = script_->joined[place.queue];
    joined = std::max(joined, place.enqueued);
  }
  ++script_->enqueued[this];
  keep([this, &other, mark] { follow(other, replayed_->marks.at(mark).now); });
}

std::string Queue::device_id() const { return fmt::format("simulated {}", fmt::ptr(this)); }

void Queue::copy(void* to, const void* from, size_t bytes) {
  enqueue([=] { std::memcpy(to, from, bytes); });
}

void Queue::fill(void* to, int byte, size_t bytes) {
  enqueue([=] { std::memset(to, byte, bytes); });
}

void Queue::record(Event& event) {
  require(!recording(), "events are not recorded");
  event.queue_ = this;
  event.until_ = enqueued_;
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
