#pragma once
// The operations by which a training reads and changes its files (those of `supervise` are not its
// own; data files are mapped). All go through one object, so that tests can record them, let one
// fail, and rebuild the states that a crash may leave on the disk
// (tests/io/crash_consistency_test.cpp).
#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace espalier::io {

/// The system's calls, with their results: -1 and errno on failure. Calls come from any thread.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  /// A file, or a folder to `sync`; `flags` of open(2). A new file gets mode 0666.
  virtual int open(const std::filesystem::path& path, int flags);
  virtual ssize_t read(int file, void* out, size_t bytes, uint64_t offset);
  virtual ssize_t write(int file, const void* data, size_t bytes, uint64_t offset);
  virtual int resize(int file, uint64_t size);
  /// Content and size of a file, or the names in a folder, to the disk.
  virtual int sync(int file);
  virtual int close(int file);
  /// An exclusive lock, without waiting.
  virtual int lock(int file);
  virtual int rename(const std::filesystem::path& from, const std::filesystem::path& to);
  virtual int unlink(const std::filesystem::path& path);
  virtual int make_folder(const std::filesystem::path& path);
};

/// The process's file system: the system's calls unless a FileSystemScope lives.
FileSystem& file_system();

/// Replaces the process's file system during its lifetime, for tests.
class FileSystemScope {
 public:
  explicit FileSystemScope(FileSystem& replacement);
  ~FileSystemScope();
  FileSystemScope(const FileSystemScope&) = delete;
  FileSystemScope& operator=(const FileSystemScope&) = delete;

 private:
  FileSystem& before_;
};

/// Repeats a call that a signal interrupted.
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) {
    result = call();
  }
  return result;
}

/// errno of such a call; 0: it succeeded.
template <class Call>
int error_of(const Call& call) {
  return uninterrupted(call) < 0 ? errno : 0;
}

/// The system's text for an errno.
std::string cause_of(int error);

}  // namespace espalier::io
