#pragma once
// A whole file as read-only memory. Throws Failure when it is missing, empty, unreadable or no
// ordinary file. The read of a part that the file has lost since, or that the disk cannot deliver,
// raises SIGBUS.
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace espalier::io {

class MappedFile {
 public:
  /// `what` begins the messages.
  explicit MappedFile(std::filesystem::path path, std::string_view what = "data file");
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  const std::filesystem::path& path() const { return path_; }
  std::span<const uint8_t> bytes() const { return bytes_; }

 private:
  std::filesystem::path path_;
  std::span<const uint8_t> bytes_;
};

/// The mapped file of this process that `address` belongs to; empty: none. For a handler of SIGBUS
/// in a thread that read there: the lock inside is then free, or another thread's.
std::string mapped_file_at(const void* address);

}  // namespace espalier::io
