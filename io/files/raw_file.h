#pragma once
// Files that are written safely: RawFile for HDF5, AtomicFile and GrowingFile for text and records.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace espalier::io {

/// Ends the messages of files that cannot be written.
inline constexpr std::string_view kWriteAdvice =
    "free space or fix the cause, then repeat the command (train: with --resume auto)";

/// The bytes of a file, read and written at offsets. Errors are sticky: after the first failed
/// write the file accepts and drops all further writes, and `error()` keeps the cause. HDF5 needs
/// that: it cannot close a file whose last writes fail, and then aborts or loops when the process
/// exits.
class RawFile {
 public:
  /// A new file; throws Failure when it exists or cannot be made.
  static RawFile create(const std::filesystem::path& path);
  /// Read-only; throws Failure when it is missing or no ordinary file. Does not wait for the writer
  /// of a pipe.
  static RawFile open(const std::filesystem::path& path);
  /// An existing ordinary file, to read and write; not through a link.
  static RawFile open_to_write(const std::filesystem::path& path);
  RawFile(RawFile&& other) noexcept;
  RawFile& operator=(RawFile&&) = delete;
  ~RawFile();

  uint64_t size() const { return size_; }
  /// Past the end: zeros. False on an error.
  bool read(uint64_t offset, size_t bytes, void* out);
  /// The same, without the zeros: bytes that were read before the end; empty on an error.
  std::optional<size_t> read_to_end(uint64_t offset, size_t bytes, void* out);
  /// Also starts the transfer to the disk, so that `finish` has little left to wait for; of a long
  /// file it waits for what was written before the last 64 MiB, and frees its pages.
  void write(uint64_t offset, size_t bytes, const void* data);
  void resize(uint64_t size);
  /// Content and size, to the disk.
  void sync();
  /// The same, while another thread may write: the cause is returned (errno; 0: none), not noted.
  int flush() const;
  /// `sync`; then closes.
  void finish();
  /// Frees the system's copy in memory of what is on the disk, as far as it can: later reads are
  /// of the disk.
  void forget_cached() const;
  /// errno of the first failure; 0: none.
  int error() const { return error_; }
  /// Notes a failure outside of the file's own calls.
  void note(int error);

 private:
  RawFile(int file, uint64_t size) : file_(file), size_(size) {}
  static RawFile open_ordinary(const std::filesystem::path& path, int flags);
  void collect(uint64_t offset, size_t bytes);
  void start_to_disk(uint64_t offset, size_t bytes);

  struct Piece {
    uint64_t offset = 0;
    size_t bytes = 0;
  };
  int file_ = -1;
  uint64_t size_ = 0;
  int error_ = 0;
  Piece collected_{};             ///< consecutive writes, too short to be worth a transfer
  std::vector<Piece> under_way_;  ///< large writes that may not be on the disk, in order
  size_t bytes_under_way_ = 0;
};

/// Bytes of a text that people write, at most; of a text that a run writes.
inline constexpr uint64_t kMaxConfig = uint64_t{1} << 20;
inline constexpr uint64_t kMaxText = uint64_t{1} << 32;

/// The bytes of an ordinary file; throws Failure when it cannot be read or has more than `most`.
/// `what` is the file's kind in messages: "config".
std::string read_text(const std::filesystem::path& path, std::string_view what,
                      uint64_t most = kMaxText);

/// A file that appears whole or not at all: written to a temporary name, then fsynced and renamed.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();  ///< without commit: removes the temporary file
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void append(std::string_view text);
  /// Throws Failure with the cause of the first write that failed.
  void write(uint64_t offset, std::span<const std::byte> bytes);
  /// To the disk, still under the temporary name. Throws Failure likewise.
  void complete();
  /// Completes unless that is done, and renames.
  void commit();

 private:
  void expect_written() const;

  std::filesystem::path path_, temporary_;
  RawFile file_;
  bool completed_ = false;
  bool committed_ = false;
};

/// A file of a run that grows while the run goes on, by whole lines or records.
class GrowingFile {
 public:
  /// `path`, for messages, is that of `file`.
  GrowingFile(std::filesystem::path path, RawFile file)
      : path_(std::move(path)), file_(std::move(file)) {}

  const std::filesystem::path& path() const { return path_; }
  /// The bytes are in the file when the call returns, but on the disk only after `sync`. Throws
  /// Failure if they cannot be written.
  void append(std::string_view bytes);
  /// All bytes to the disk. Another thread may append meanwhile.
  void sync() const;

 private:
  void expect_written(int error) const;

  std::filesystem::path path_;
  RawFile file_;
};

}  // namespace espalier::io
