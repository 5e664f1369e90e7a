#pragma once
// Files that are written safely: RawFile for HDF5, AtomicFile for text.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace espalier::io {

/// The bytes of a file, read and written at offsets. Errors are sticky: after the first failed
/// write the file accepts and drops all further writes, and `error()` keeps the cause. HDF5 needs
/// that: it cannot close a file whose last writes fail, and then aborts or loops when the process
/// exits.
class RawFile {
 public:
  /// A new file; throws Failure when it exists or cannot be made.
  static RawFile create(const std::filesystem::path& path);
  /// Read-only; throws Failure when it is missing or no ordinary file.
  static RawFile open(const std::filesystem::path& path);
  RawFile(RawFile&& other) noexcept;
  RawFile& operator=(RawFile&&) = delete;
  ~RawFile();

  uint64_t size() const { return size_; }
  /// Past the end: zeros. False on an error.
  bool read(uint64_t offset, size_t bytes, void* out);
  void write(uint64_t offset, size_t bytes, const void* data);
  void resize(uint64_t size);
  /// To the disk; then closes.
  void finish();
  /// errno of the first failure; 0: none.
  int error() const { return error_; }

 private:
  RawFile(int file, uint64_t size) : file_(file), size_(size) {}
  void note(int error);
  int file_ = -1;
  uint64_t size_ = 0;
  int error_ = 0;
};

/// A text file that appears whole or not at all: written to a temporary name, then fsynced and
/// renamed.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();  ///< without commit: removes the temporary file
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void append(std::string_view text);
  void commit();  ///< throws Failure with the cause of the first write that failed

 private:
  std::filesystem::path path_;
  RawFile file_;
  bool committed_ = false;
};

/// `path.tmp-PID`, beside the file it will replace.
std::filesystem::path temporary_name(const std::filesystem::path& path);
/// The PID in a temporary name; 0 for any other name.
int64_t temporary_owner(const std::filesystem::path& path);
/// Renames `temporary` to `path` and fsyncs the folder; throws Failure.
void publish(const std::filesystem::path& temporary, const std::filesystem::path& path);
/// Makes the folder of `path` and those above it; throws Failure.
void make_folder_of(const std::filesystem::path& path);

}  // namespace espalier::io
