#include "io/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "io/files/file_system.h"
#include "src/core/error.h"

namespace espalier::io {

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
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(const_cast<uint8_t*>(bytes_.data()), bytes_.size());
  }
}

}  // namespace espalier::io
