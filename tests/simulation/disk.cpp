#include "tests/simulation/disk.h"

#include <fcntl.h>

#include <cerrno>

namespace espalier::simulation {
namespace {

/// `call`, unless the world lets it fail.
template <class Call>
auto unless_it_fails(Target target, bool fills, const Call& call) {
  const int error = touch_disk(target, fills);
  if (error == 0) {
    return call();
  }
  errno = error;
  return decltype(call()){-1};
}

}  // namespace

int SimulatedDisk::open(const std::filesystem::path& path, int flags) {
  const auto open = [&] { return FileSystem::open(path, flags); };
  if (path.native().starts_with("/proc/")) {
    return open();  // once a process, whatever the number of runs
  }
  const bool creates = (flags & O_CREAT) != 0;
  if (!finds_file(path, creates)) {
    errno = ENOENT;
    return -1;
  }
  return unless_it_fails(creates ? Target::write : Target::read, creates, open);
}

ssize_t SimulatedDisk::read(int file, void* out, size_t bytes, uint64_t offset) {
  return unless_it_fails(Target::read, false,
                         [&] { return FileSystem::read(file, out, bytes, offset); });
}

ssize_t SimulatedDisk::write(int file, const void* data, size_t bytes, uint64_t offset) {
  return unless_it_fails(Target::write, true,
                         [&] { return FileSystem::write(file, data, bytes, offset); });
}

int SimulatedDisk::resize(int file, uint64_t size) {
  return unless_it_fails(Target::write, true, [&] { return FileSystem::resize(file, size); });
}

int SimulatedDisk::sync(int file) {
  return unless_it_fails(Target::write, true, [&] { return FileSystem::sync(file); });
}

int SimulatedDisk::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  return unless_it_fails(Target::write, true, [&] { return FileSystem::rename(from, to); });
}

int SimulatedDisk::unlink(const std::filesystem::path& path) {
  return unless_it_fails(Target::write, false, [&] { return FileSystem::unlink(path); });
}

int SimulatedDisk::make_folder(const std::filesystem::path& path) {
  return unless_it_fails(Target::write, true, [&] { return FileSystem::make_folder(path); });
}

}  // namespace espalier::simulation
