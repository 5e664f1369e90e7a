#pragma once
// Overlaps reading and writing: a thread of its own writes pieces, in order, while the caller
// fills the next ones.
//
//   PieceWriter writer;
//   std::span<std::byte> piece = writer.take(bytes);   waits for a free buffer
//   … fill it …
//   writer.write(piece, [&](std::span<const std::byte> bytes) { file.write(…, bytes); });
//   writer.finish();                                    waits for all writes
//
// Calls come from one thread. An exception of a write is thrown by the next call.
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace espalier::hub {

class PieceWriter {
 public:
  /// Bytes of a piece, at most. Memory: kBuffers of them.
  static constexpr size_t kPieceBytes = size_t{4} << 20;
  static constexpr size_t kBuffers = 4;
  using Write = std::function<void(std::span<const std::byte>)>;

  PieceWriter();
  ~PieceWriter();  ///< drops what is not written
  PieceWriter(const PieceWriter&) = delete;
  PieceWriter& operator=(const PieceWriter&) = delete;

  std::span<std::byte> take(size_t bytes);
  void write(std::span<const std::byte> piece, Write write);
  void finish();

 private:
  struct Task {
    std::span<const std::byte> piece{};
    Write write{};
  };
  void run();
  void rethrow();

  std::vector<std::vector<std::byte>> buffers_;
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::byte*> free_;
  std::deque<Task> tasks_;
  std::exception_ptr failure_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace espalier::hub
