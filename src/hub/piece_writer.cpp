#include "src/hub/piece_writer.h"

#include "src/core/error.h"

namespace espalier::hub {

PieceWriter::PieceWriter() : buffers_(kBuffers) {
  for (std::vector<std::byte>& buffer : buffers_) {
    buffer.resize(kPieceBytes);
    free_.push_back(buffer.data());
  }
  thread_ = std::thread([this] { run(); });
}

PieceWriter::~PieceWriter() {
  {
    const std::lock_guard guard(lock_);
    ends_ = true;
    tasks_.clear();
  }
  changed_.notify_all();
  thread_.join();
}

std::span<std::byte> PieceWriter::take(size_t bytes) {
  require(bytes <= kPieceBytes, "a piece fits its buffer", bytes);
  std::unique_lock guard(lock_);
  changed_.wait(guard, [this] { return failure_ || !free_.empty(); });
  rethrow();
  std::byte* const buffer = free_.front();
  free_.pop_front();
  return {buffer, bytes};
}

void PieceWriter::write(std::span<const std::byte> piece, Write write) {
  {
    const std::lock_guard guard(lock_);
    rethrow();
    tasks_.push_back({.piece = piece, .write = std::move(write)});
  }
  changed_.notify_all();
}

void PieceWriter::finish() {
  std::unique_lock guard(lock_);
  changed_.wait(guard, [this] { return failure_ || free_.size() == kBuffers; });
  rethrow();
}

void PieceWriter::rethrow() {
  if (failure_) {
    std::rethrow_exception(failure_);
  }
}

void PieceWriter::run() {
  std::unique_lock guard(lock_);
  while (true) {
    changed_.wait(guard, [this] { return ends_ || !tasks_.empty(); });
    if (ends_) {
      return;
    }
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    guard.unlock();
    std::exception_ptr failure;
    try {
      task.write(task.piece);
    } catch (...) {
      failure = std::current_exception();
    }
    guard.lock();
    // Buffers are vectors that never move: the piece begins one.
    free_.push_back(const_cast<std::byte*>(task.piece.data()));
    if (failure && !failure_) {
      failure_ = failure;
      tasks_.clear();
    }
    changed_.notify_all();
  }
}

}  // namespace espalier::hub
