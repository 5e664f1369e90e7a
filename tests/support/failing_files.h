#pragma once
// A file system whose calls fail (io/files/file_system.h).
#include <array>

#include "io/files/file_system.h"

namespace espalier::testing {

enum Call {
  kOpen,
  kRead,
  kWrite,
  kResize,
  kSync,
  kClose,
  kLock,
  kRename,
  kUnlink,
  kMakeFolder,
  kCalls
};

/// The system's calls without waiting for the disk. The `number`-th of one kind (kCalls: of all)
/// fails, once.
class FailingFiles : public io::FileSystem {
 public:
  FailingFiles() = default;
  FailingFiles(Call call, int64_t number, int error)
      : call_(call), number_(number), error_(error) {}

  int open(const std::filesystem::path& path, int flags) override {
    return fails(kOpen) ? -1 : io::FileSystem::open(path, flags);
  }
  ssize_t read(int file, void* out, size_t bytes, uint64_t offset) override {
    return fails(kRead) ? -1 : io::FileSystem::read(file, out, bytes, offset);
  }
  ssize_t write(int file, const void* data, size_t bytes, uint64_t offset) override {
    return fails(kWrite) ? -1 : io::FileSystem::write(file, data, bytes, offset);
  }
  int resize(int file, uint64_t size) override {
    return fails(kResize) ? -1 : io::FileSystem::resize(file, size);
  }
  int sync(int) override { return fails(kSync) ? -1 : 0; }
  int close(int file) override {  // closed whatever is reported
    const int result = io::FileSystem::close(file);
    return fails(kClose) ? -1 : result;
  }
  int lock(int file) override { return fails(kLock) ? -1 : io::FileSystem::lock(file); }
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    return fails(kRename) ? -1 : io::FileSystem::rename(from, to);
  }
  int unlink(const std::filesystem::path& path) override {
    return fails(kUnlink) ? -1 : io::FileSystem::unlink(path);
  }
  int make_folder(const std::filesystem::path& path) override {
    return fails(kMakeFolder) ? -1 : io::FileSystem::make_folder(path);
  }

  int64_t calls(Call call) const { return calls_.at(call); }

 private:
  bool fails(Call call) {
    ++calls_.at(call);
    ++calls_.at(kCalls);
    if ((call != call_ && call_ != kCalls) || calls_.at(call_) != number_) {
      return false;
    }
    errno = error_;
    return true;
  }

  Call call_ = kCalls;
  int64_t number_ = -1;
  int error_ = 0;
  std::array<int64_t, kCalls + 1> calls_{};
};

}  // namespace espalier::testing
