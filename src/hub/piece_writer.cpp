#include "src/hub/piece_writer.h"

#include "src/core/error.h"

namespace espalier::hub {

PieceWriter::PieceWriter(size_t buffers) {
  for (size_t i = 0; i < buffers; ++i) {
    buffers_.push_back(std::make_unique_for_overwrite<std::byte[]>(kPieceBytes));
    free_.push_back(buffers_.back().get());
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
  std::byte* const buffer = free_.back();
  free_.pop_back();
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
  changed_.wait(guard, [this] { return failure_ || free_.size() == buffers_.size(); });
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
    // The piece begins a buffer.
    free_.push_back(const_cast<std::byte*>(task.piece.data()));
    if (failure && !failure_) {
      failure_ = failure;
      tasks_.clear();
    }
    changed_.notify_all();
  }
}

}  // namespace espalier::hub
