#include "io/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <utility>

#include "io/files/file_system.h"
#include "src/core/error.h"

namespace espalier::io {

namespace {

/// All mapped files, by their first byte.
struct Mappings {
  struct Mapping {
    size_t size = 0;
    std::string file{};
  };
  std::mutex lock;
  std::map<const uint8_t*, Mapping> by_begin;
};

Mappings& mappings() {
  static Mappings& all = *new Mappings;  // never destroyed: threads read files while a process ends
  return all;
}

}  // namespace

MappedFile::MappedFile(std::filesystem::path path, std::string_view what) : path_(std::move(path)) {
  int file = -1;
  int error = error_of([&] { return file = file_system().open(path_, O_RDONLY | O_NONBLOCK); });
  check_system(error == 0, error,
               "{} {} cannot be opened: {}; paths are relative to the working directory", what,
               path_.string(), cause_of(error));
  struct stat status {};
  const bool ordinary = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  const auto size = static_cast<size_t>(status.st_size);
  void* memory =
      ordinary && size > 0 ? ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
  error = errno;
  file_system().close(file);
  check(ordinary, "{} {} is not an ordinary file; name a file, not a folder, pipe or device", what,
        path_.string());
  check(size > 0, "{} {} is empty", what, path_.string());
  check_system(memory != MAP_FAILED, error, "{} {} cannot be mapped: {}", what, path_.string(),
               cause_of(error));
  bytes_ = {static_cast<const uint8_t*>(memory), size};
  const std::lock_guard held(mappings().lock);
  mappings().by_begin[bytes_.data()] = {size, path_.string()};
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    const std::lock_guard held(mappings().lock);  // until no other mapping can have this address
    mappings().by_begin.erase(bytes_.data());
    ::munmap(const_cast<uint8_t*>(bytes_.data()), bytes_.size());
  }
}

std::string mapped_file_at(const void* address) {
  const auto* byte = static_cast<const uint8_t*>(address);
  const std::lock_guard held(mappings().lock);
  auto after = mappings().by_begin.upper_bound(byte);
  if (after == mappings().by_begin.begin()) {
    return "";
  }
  const auto& [begin, mapping] = *--after;
  return byte < begin + mapping.size ? mapping.file : "";
}

}  // namespace espalier::io
