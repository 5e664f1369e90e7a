#pragma once
// A whole file as read-only memory. Throws Failure when it is missing, empty, unreadable or no
// ordinary file. A file that shrinks while it is mapped kills the process (SIGBUS): do not
// change data files during a run.
#include <cstdint>
#include <filesystem>
#include <span>
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

}  // namespace espalier::io
