#pragma once
// A thin layer over HDF5, for io only: files, groups, datasets and attributes by path. Every call
// throws Failure with the file, the action, and HDF5's (or the system's) cause. The first call
// switches HDF5's own error printing off. The library is not thread-safe, so each call holds one
// process-wide lock. Datasets are contiguous and not compressed: reads and writes go directly
// between disk and caller's memory.
//
// Attributes are what h5py users expect: a text is a scalar of variable length in UTF-8 (h5py:
// str), a number a scalar. Texts of fixed length and arrays of one number, as checkpoints of
// version 1 have them, are read as well. HDF5 has no checksum over texts of variable length: a
// caller that needs one stores its own.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace espalier::io::hdf5 {

/// Element types, little-endian. bf16 is a custom 16-bit float that HDF5 converts like any other.
enum class Type : uint8_t { fp16, bf16, fp32, fp64, int32, uint8, other_float, other };
size_t size_of(Type type);
/// "HDF5 1.10.8"
std::string library();

struct Dataset {
  Type type = Type::other;
  std::vector<int64_t> extents{};
  int64_t count = 0;  ///< elements
  uint64_t stored_bytes = 0;
};

class File {
 public:
  /// A new file, beside `path` under a temporary name until `finish`; makes missing folders.
  /// `label` names it in messages.
  static File create(const std::filesystem::path& path, std::string label);
  static File open(const std::filesystem::path& path);
  File(File&&) noexcept;
  File& operator=(File&&) = delete;
  /// Closes; removes a file that is not finished.
  ~File();

  uint64_t size() const;  ///< bytes of the file
  bool exists(const std::string& path) const;
  /// Names in a group, in the order of creation where the file keeps it, else by name.
  std::vector<std::string> children(const std::string& group) const;
  /// Paths of all datasets below the root, by hard links.
  std::vector<std::string> datasets() const;
  void make_group(const std::string& path);

  void write(const std::string& path, Type type, std::span<const int64_t> extents,
             const void* data);
  Dataset describe(const std::string& path) const;
  /// All elements, converted to `type` when the file has another.
  void read(const std::string& path, Type type, std::span<std::byte> out) const;

  void set_text(const std::string& path, const std::string& name, const std::string& text);
  void set_integer(const std::string& path, const std::string& name, int64_t value);
  /// An array, also of one number.
  void set_integers(const std::string& path, const std::string& name,
                    std::span<const int64_t> values);
  std::vector<std::string> attributes(const std::string& path) const;
  std::string text(const std::string& path, const std::string& name) const;
  /// Of a scalar or an array.
  std::vector<int64_t> integers(const std::string& path, const std::string& name) const;

  /// Flushes to the disk, closes, and renames to the path given to `create`: the file appears whole
  /// or not at all.
  void finish();

 private:
  struct State;
  struct Attribute;
  explicit File(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace espalier::io::hdf5
