#pragma once
// A thin layer over HDF5, for io only: writes files, groups, datasets and attributes by path. Every
// call throws Failure with the file, the action, and HDF5's (or the system's) cause. The first call
// switches HDF5's own error printing off. The library is not thread-safe, so each call holds one
// process-wide lock. Datasets are contiguous and not compressed: writes go directly from the
// caller's memory to the disk. reader.h reads.
//
// Attributes are what h5py users expect: a text is a scalar of variable length in UTF-8 (h5py:
// str), a number a scalar. HDF5 has no checksum over texts of variable length: a caller that needs
// one stores its own.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace espalier::io::hdf5 {

/// Element types, little-endian. bf16 is a custom 16-bit float that HDF5 converts like any other.
/// Readers convert other floats and integers (also bool of h5py), but not `other`.
enum class Type : uint8_t {
  fp16,
  bf16,
  fp32,
  fp64,
  int32,
  int64,
  uint8,
  other_float,
  other_integer,
  other
};
bool is_float(Type type);
bool is_integer(Type type);
size_t size_of(Type type);
/// "HDF5 1.10.8"
std::string library();

class File {
 public:
  /// A new file, beside `path` under a temporary name until `finish`; makes missing folders.
  /// `label` names it in messages.
  static File create(const std::filesystem::path& path, std::string label);
  File(File&&) noexcept;
  File& operator=(File&&) = delete;
  /// Closes; removes a file that is not finished.
  ~File();

  bool exists(const std::string& path) const;
  void make_group(const std::string& path);

  void write(const std::string& path, Type type, std::span<const int64_t> extents,
             const void* data);
  /// A dataset whose elements are written by others, at the returned offset of `temporary`, in
  /// memory order, before `finish`. 0 if it is empty.
  uint64_t reserve(const std::string& path, Type type, std::span<const int64_t> extents);
  /// Where a file that is not finished lies.
  const std::filesystem::path& temporary() const;

  void set_text(const std::string& path, const std::string& name, const std::string& text);
  void set_integer(const std::string& path, const std::string& name, int64_t value);
  /// An array, also of one number.
  void set_integers(const std::string& path, const std::string& name,
                    std::span<const int64_t> values);

  /// Closes, and flushes to the disk, still under the temporary name. Other files may be read and
  /// written meanwhile: the disk is not waited for with the library's lock.
  void complete();
  /// Completes unless that is done, and renames to the path given to `create`: the file appears
  /// whole or not at all.
  void finish();

 private:
  struct State;
  explicit File(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace espalier::io::hdf5
