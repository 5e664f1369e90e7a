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
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace espalier::hub {

class PieceWriter {
 public:
  static constexpr size_t kPieceBytes = size_t{4} << 20;  ///< of a piece, at most
  /// Pieces that may wait. If the caller fills pieces now and then none for a while, as when it
  /// reads a matrix that it will transpose, more of them keep the writer busy meanwhile.
  static constexpr size_t kBuffers = 4, kBuffersOfBursts = 16;
  using Write = std::function<void(std::span<const std::byte>)>;

  /// Memory: that of the pieces that ever waited.
  explicit PieceWriter(size_t buffers = kBuffers);
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

  std::vector<std::unique_ptr<std::byte[]>> buffers_;
  std::mutex lock_;
  std::condition_variable changed_;
  std::vector<std::byte*> free_;  ///< the last one is used next: its memory is there
  std::deque<Task> tasks_;
  std::exception_ptr failure_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace espalier::hub
