#pragma once
// Bytes of an HDF5 file that may come from anywhere: every access is checked against its bounds.
// Private to this folder.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "io/files/raw_file.h"

namespace espalier::io::hdf5 {

/// A structure that contradicts the format, or is not supported. Reader adds file and path.
class FormatError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The system could not read the file. Reader adds file and path.
struct Unreadable {
  int error = 0;
};

inline void expect(bool ok, const char* what) {
  if (!ok) {
    throw FormatError(what);
  }
}

/// HDF5's mark for "no address".
inline constexpr uint64_t kNowhere = ~uint64_t{0};

/// Reads little-endian numbers one after another; a FormatError beyond the end.
class Cursor {
 public:
  explicit Cursor(std::span<const uint8_t> bytes) : rest_(bytes) {}
  size_t rest() const { return rest_.size(); }
  std::span<const uint8_t> take(uint64_t bytes);
  void skip(uint64_t bytes) { take(bytes); }
  /// Of at most 8 bytes.
  uint64_t number(size_t bytes);
  uint8_t byte() { return static_cast<uint8_t>(number(1)); }
  uint64_t address() { return number(8); }
  void signature(std::string_view text);

 private:
  std::span<const uint8_t> rest_;
};

/// Jenkins' lookup3 (hashlittle, seed 0), HDF5's checksum of metadata. The checksums have a file of
/// their own: fuzz programs replace it (tests/fuzz/checksums.cpp).
uint32_t metadata_checksum(std::span<const uint8_t> bytes);
/// Whether `stated` is the checksum of metadata; of a chunk (filter fletcher32).
bool is_metadata_checksum(std::span<const uint8_t> bytes, uint32_t stated);
bool is_data_checksum(std::span<const uint8_t> bytes, uint32_t stated);

class BoundedFile {
 public:
  /// Throws Failure when `path` is missing or no ordinary file.
  explicit BoundedFile(const std::filesystem::path& path) : file_(RawFile::open(path)) {}

  /// Bytes from the base on. Addresses count from there.
  uint64_t size() const { return file_.size() - base_; }
  /// Behind a user block of `base` bytes.
  void set_base(uint64_t base);
  /// Structures read from now on may have so many bytes in all as the file times 4 (those of
  /// damaged files may refer to each other in circles).
  void restart() { budget_ = (uint64_t{1} << 20) + 4 * size(); }
  std::vector<uint8_t> read(uint64_t address, uint64_t bytes);
  /// The same, ending with a checksum, which is checked; `what` names the structure.
  std::vector<uint8_t> checked(uint64_t address, uint64_t bytes, const char* what);
  /// Elements of a dataset.
  void copy(uint64_t address, std::span<std::byte> out);

 private:
  void load(uint64_t address, size_t bytes, void* out);
  /// The same from `page_`: structures are small and lie side by side.
  void load_structure(uint64_t address, std::span<uint8_t> out);
  RawFile file_;
  uint64_t base_ = 0;
  uint64_t budget_ = 0;
  uint64_t page_address_ = 0;
  std::vector<uint8_t> page_;  ///< the bytes of the file from page_address_ on
};

}  // namespace espalier::io::hdf5
