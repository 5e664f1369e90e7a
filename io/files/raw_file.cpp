#include "io/files/raw_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "io/files/file_system.h"
#include "io/files/folders.h"
#include "src/core/error.h"

namespace espalier::io {
namespace {

/// One call moves at most this much: the disk writes a piece while the next one is copied.
constexpr size_t kMaxTransfer = size_t{1} << 25;
constexpr size_t kPiece = size_t{1} << 24;  ///< of a write

}  // namespace

RawFile RawFile::create(const std::filesystem::path& path) {
  int file = -1;
  const int error =
      error_of([&] { return file = file_system().open(path, O_RDWR | O_CREAT | O_EXCL); });
  check_system(error == 0, error,
               "{} cannot be created: {}; check the path, permissions and free space",
               path.string(), cause_of(error));
  return {file, 0};
}

RawFile RawFile::open(const std::filesystem::path& path) { return open_ordinary(path, O_RDONLY); }

RawFile RawFile::open_to_write(const std::filesystem::path& path) {
  return open_ordinary(path, O_RDWR | O_NOFOLLOW);
}

RawFile RawFile::open_ordinary(const std::filesystem::path& path, int flags) {
  int file = -1;
  int error = error_of([&] { return file = file_system().open(path, flags | O_NONBLOCK); });
  check_system(error == 0, error, "{} cannot be opened: {}", path.string(), cause_of(error));
  RawFile out(file, 0);
  struct stat status {};
  error = error_of([&] { return ::fstat(file, &status); });
  check_system(error == 0, error, "{} cannot be examined: {}", path.string(), cause_of(error));
  check(S_ISREG(status.st_mode),
        "{} is not an ordinary file; name a file, not a folder, pipe or device", path.string());
  out.size_ = static_cast<uint64_t>(status.st_size);
  return out;
}

RawFile::RawFile(RawFile&& other) noexcept
    : file_(std::exchange(other.file_, -1)), size_(other.size_), error_(other.error_) {}

RawFile::~RawFile() {
  if (file_ >= 0) {
    file_system().close(file_);
  }
}

void RawFile::note(int error) {
  if (error_ == 0) {
    error_ = error;
  }
}

bool RawFile::read(uint64_t offset, size_t bytes, void* out) {
  const std::optional<size_t> got = read_to_end(offset, bytes, out);
  if (got) {
    std::memset(static_cast<std::byte*>(out) + *got, 0, bytes - *got);
  }
  return got.has_value();
}

std::optional<size_t> RawFile::read_to_end(uint64_t offset, size_t bytes, void* out) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = uninterrupted([&] {
      return file_system().read(file_, static_cast<std::byte*>(out) + done,
                                std::min(bytes - done, kMaxTransfer), offset + done);
    });
    if (got < 0) {
      note(errno);
      return {};
    }
    if (got == 0) {
      break;
    }
    done += static_cast<size_t>(got);
  }
  return done;
}

void RawFile::write(uint64_t offset, size_t bytes, const void* data) {
  size_ = std::max(size_, offset + bytes);
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0 && error_ == 0) {
    const ssize_t put = uninterrupted(
        [&] { return file_system().write(file_, from, std::min(bytes, kPiece), offset); });
    if (put <= 0) {
      note(put < 0 ? errno : ENOSPC);
      return;
    }
    collect(offset, static_cast<size_t>(put));
    from += put;
    offset += static_cast<uint64_t>(put);
    bytes -= static_cast<size_t>(put);
  }
}

/// Starts writing to the disk when consecutive writes make a large piece.
void RawFile::collect(uint64_t offset, size_t bytes) {
  constexpr size_t kLarge = size_t{1} << 20;
  if (offset != collected_.offset + collected_.bytes) {
    collected_ = {offset, 0};
  }
  collected_.bytes += bytes;
  if (collected_.bytes >= kLarge) {
    start_to_disk(collected_.offset, collected_.bytes);
    collected_ = {offset + bytes, 0};
  }
}

/// Starts writing a piece to the disk, and waits for those before the last 64 MiB. With more
/// unwritten pages Linux would slow the writer down to a rate that it estimates, often far below
/// the disk's (docs/formats.md).
void RawFile::start_to_disk(uint64_t offset, size_t bytes) {
  constexpr size_t kUnderWay = size_t{64} << 20U;
  constexpr unsigned kWait =
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  const auto range = [this](const Piece& piece, unsigned what) {
    ::sync_file_range(file_, static_cast<off_t>(piece.offset), static_cast<off_t>(piece.bytes),
                      what);
  };
  under_way_.push_back({offset, bytes});
  bytes_under_way_ += bytes;
  range(under_way_.back(), SYNC_FILE_RANGE_WRITE);
  while (bytes_under_way_ > kUnderWay) {
    const Piece& first = under_way_.front();
    range(first, kWait);
    ::posix_fadvise(file_, static_cast<off_t>(first.offset), static_cast<off_t>(first.bytes),
                    POSIX_FADV_DONTNEED);
    bytes_under_way_ -= first.bytes;
    under_way_.erase(under_way_.begin());
  }
}

void RawFile::resize(uint64_t size) {
  size_ = size;
  if (error_ == 0) {
    note(error_of([&] { return file_system().resize(file_, size); }));
  }
}

void RawFile::sync() {
  if (error_ == 0) {
    note(flush());
  }
}

int RawFile::flush() const {
  const int error = error_of([&] { return file_system().sync(file_); });
  return error == EINVAL ? 0 : error;  // EINVAL: a file system that knows no fsync
}

void RawFile::finish() {
  sync();
  // Linux closes the file also where it reports an interruption; a second close would be of
  // another's descriptor.
  if (file_system().close(std::exchange(file_, -1)) != 0 && errno != EINTR) {
    note(errno);
  }
}

void RawFile::forget_cached() const { ::posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED); }

std::string read_text(const std::filesystem::path& path, std::string_view what, uint64_t most) {
  try {
    RawFile file = RawFile::open(path);
    check(file.size() <= most, "{} has {} bytes, more than the {} that are read; name another file",
          path.string(), file.size(), most);
    std::string text(file.size(), '\0');
    const bool read = file.read(0, text.size(), text.data());
    check_system(read, file.error(), "{} cannot be read: {}", path.string(),
                 cause_of(file.error()));
    return text;
  } catch (const Failure& failure) {
    throw Failure(fmt::format("{} {}", what, failure.what()), failure.retryable());
  }
}

AtomicFile::AtomicFile(std::filesystem::path path)
    : path_(std::move(path)), temporary_(make_way_for(path_)), file_(RawFile::create(temporary_)) {}

AtomicFile::~AtomicFile() {
  if (!committed_) {
    file_system().unlink(temporary_);
  }
}

void AtomicFile::append(std::string_view text) {
  file_.write(file_.size(), text.size(), text.data());
}

void AtomicFile::write(uint64_t offset, std::span<const std::byte> bytes) {
  file_.write(offset, bytes.size(), bytes.data());
  expect_written();
}

void AtomicFile::complete() {
  if (!completed_) {
    file_.finish();
    expect_written();
    completed_ = true;
  }
}

void AtomicFile::commit() {
  complete();
  publish(temporary_, path_);
  committed_ = true;
}

void AtomicFile::expect_written() const {
  check_system(file_.error() == 0, file_.error(), "{} cannot be written: {}; {}", path_.string(),
               cause_of(file_.error()), kWriteAdvice);
}

void GrowingFile::append(std::string_view bytes) {
  file_.write(file_.size(), bytes.size(), bytes.data());
  expect_written(file_.error());
}

void GrowingFile::sync() const { expect_written(file_.flush()); }

void GrowingFile::expect_written(int error) const {
  check_system(error == 0, error, "{} cannot be written: {}; {}", path_.string(), cause_of(error),
               kWriteAdvice);
}

}  // namespace espalier::io
