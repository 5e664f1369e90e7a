#include "io/files/file_system.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <system_error>

namespace espalier::io {
namespace {

FileSystem& system_calls() {
  static FileSystem calls;
  return calls;
}

std::atomic<FileSystem*> current = &system_calls();

}  // namespace

int FileSystem::open(const std::filesystem::path& path, int flags) {
  return ::open(path.c_str(), flags | O_CLOEXEC, 0666);
}

ssize_t FileSystem::read(int file, void* out, size_t bytes, uint64_t offset) {
  return ::pread(file, out, bytes, static_cast<off_t>(offset));
}

ssize_t FileSystem::write(int file, const void* data, size_t bytes, uint64_t offset) {
  return ::pwrite(file, data, bytes, static_cast<off_t>(offset));
}

int FileSystem::resize(int file, uint64_t size) {
  return ::ftruncate(file, static_cast<off_t>(size));
}

int FileSystem::sync(int file) { return ::fsync(file); }
int FileSystem::close(int file) { return ::close(file); }
int FileSystem::lock(int file) { return ::flock(file, LOCK_EX | LOCK_NB); }

int FileSystem::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  return ::rename(from.c_str(), to.c_str());
}

int FileSystem::unlink(const std::filesystem::path& path) { return ::unlink(path.c_str()); }

int FileSystem::make_folder(const std::filesystem::path& path) {
  return ::mkdir(path.c_str(), 0777);
}

FileSystem& file_system() { return *current; }

FileSystemScope::FileSystemScope(FileSystem& replacement) : before_(file_system()) {
  current = &replacement;
}

FileSystemScope::~FileSystemScope() { current = &before_; }

std::string cause_of(int error) { return std::generic_category().message(error); }

}  // namespace espalier::io
