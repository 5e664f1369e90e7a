#include "io/files/raw_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "src/core/error.h"

namespace espalier::io {
namespace {

std::string cause(int error) { return std::generic_category().message(error); }

/// One call moves at most this much (Linux moves less than 2 GiB at a time).
constexpr size_t kMaxTransfer = size_t{1} << 30;

}  // namespace

RawFile RawFile::create(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  check(file >= 0, "{} cannot be created: {}; check the path, permissions and free space",
        path.string(), cause(errno));
  return {file, 0};
}

RawFile RawFile::open(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  check(file >= 0, "{} cannot be opened: {}", path.string(), cause(errno));
  RawFile out(file, 0);
  struct stat status {};
  check(::fstat(file, &status) == 0, "{} cannot be examined: {}", path.string(), cause(errno));
  check(S_ISREG(status.st_mode),
        "{} is not an ordinary file; name a file, not a folder, pipe or device", path.string());
  out.size_ = static_cast<uint64_t>(status.st_size);
  return out;
}

RawFile::RawFile(RawFile&& other) noexcept
    : file_(std::exchange(other.file_, -1)), size_(other.size_), error_(other.error_) {}

RawFile::~RawFile() {
  if (file_ >= 0) {
    ::close(file_);
  }
}

void RawFile::note(int error) {
  if (error_ == 0) {
    error_ = error;
  }
}

bool RawFile::read(uint64_t offset, size_t bytes, void* out) {
  auto* to = static_cast<std::byte*>(out);
  while (bytes > 0) {
    const ssize_t got =
        ::pread(file_, to, std::min(bytes, kMaxTransfer), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      note(errno);
      return false;
    }
    if (got == 0) {
      std::memset(to, 0, bytes);
      return true;
    }
    to += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

void RawFile::write(uint64_t offset, size_t bytes, const void* data) {
  size_ = std::max(size_, offset + bytes);
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0 && error_ == 0) {
    const ssize_t put =
        ::pwrite(file_, from, std::min(bytes, kMaxTransfer), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put <= 0) {
      note(put < 0 ? errno : ENOSPC);
      return;
    }
    from += put;
    offset += static_cast<uint64_t>(put);
    bytes -= static_cast<size_t>(put);
  }
}

void RawFile::resize(uint64_t size) {
  size_ = size;
  if (error_ == 0 && ::ftruncate(file_, static_cast<off_t>(size)) != 0) {
    note(errno);
  }
}

void RawFile::finish() {
  // EINVAL: a file system that knows no fsync. There is no more to be done there.
  if (error_ == 0 && ::fsync(file_) != 0 && errno != EINVAL) {
    note(errno);
  }
  if (::close(std::exchange(file_, -1)) != 0) {
    note(errno);
  }
}

AtomicFile::AtomicFile(std::filesystem::path path)
    : path_(std::move(path)), file_(RawFile::create([this] {
        make_folder_of(path_);
        ::unlink(temporary_name(path_).c_str());  // of an earlier process that had our PID
        return temporary_name(path_);
      }())) {}

AtomicFile::~AtomicFile() {
  if (!committed_) {
    ::unlink(temporary_name(path_).c_str());
  }
}

void AtomicFile::append(std::string_view text) {
  file_.write(file_.size(), text.size(), text.data());
}

void AtomicFile::commit() {
  file_.finish();
  check(file_.error() == 0,
        "{} cannot be written: {}; free space or fix the cause, then repeat the command",
        path_.string(), cause(file_.error()));
  publish(temporary_name(path_), path_);
  committed_ = true;
}

std::filesystem::path temporary_name(const std::filesystem::path& path) {
  return path.string() + fmt::format(".tmp-{}", ::getpid());
}

int64_t temporary_owner(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  const size_t mark = name.rfind(".tmp-");
  int64_t owner = 0;
  if (mark == std::string::npos) {
    return 0;
  }
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + mark + 5, end, owner);
  return error == std::errc() && stop == end && owner > 0 ? owner : 0;
}

void publish(const std::filesystem::path& temporary, const std::filesystem::path& path) {
  check(::rename(temporary.c_str(), path.c_str()) == 0, "{} cannot be renamed to {}: {}",
        temporary.string(), path.string(), cause(errno));
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const int handle = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  check(handle >= 0, "folder {} cannot be opened: {}", folder.string(), cause(errno));
  const bool synced = ::fsync(handle) == 0 || errno == EINVAL;
  const int error = errno;
  ::close(handle);
  check(synced, "folder {} cannot be flushed: {}", folder.string(), cause(error));
}

void make_folder_of(const std::filesystem::path& path) {
  if (!path.has_parent_path()) {
    return;
  }
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  check(!error, "folder {} cannot be created: {}; check the path and its permissions",
        path.parent_path().string(), error.message());
}

}  // namespace espalier::io
