#pragma once
// Reads HDF5 files that may come from anywhere, without HDF5's library: that of Debian 12 (1.10.8)
// crashes on damaged structures. Every structure is checked against the file's bounds, and nothing
// is allocated for more bytes than the file has.
//
// Supported: what hdf5.h and h5py write for arrays of numbers, by any version of the library to
// 2.0: superblocks 0 to 3, behind a user block or not; old and new groups; hard and soft links;
// attributes of texts and integers; compact, contiguous and chunked datasets of integers (also
// enumerations, such as h5py's bool) and floats, with the filters deflate, shuffle, fletcher32 and
// lzf; types that datasets share. Refused by name: data in other files (external, virtual), other
// filters, external links, floats without a hidden one (longdouble) and opaque ones (ml_dtypes).
//
// Bounds: a dataset expands to at most 1032 times the bytes of the file (the most that deflate
// reaches); elements that were never written, to at most those bytes plus 4 MiB. All datasets have
// at most 16 times the bytes of the file (before chunks expand), each counted once; the further
// names of those with several, at most 1032 times (expanded).
//
// Errors are Failure with file, action and cause; ReadFailure where the system could not read.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/hdf5/hdf5.h"
#include "src/core/error.h"

namespace espalier::io::hdf5 {

/// The system could not read the file. EIO: a block is damaged, or the disk failed once.
class ReadFailure : public Failure {
 public:
  ReadFailure(const std::string& message, int error)
      : Failure(message, is_transient(error)), error_(error) {}
  int error() const { return error_; }

 private:
  int error_;
};

struct Dataset {
  Type type = Type::other;
  Type number = Type::other;  ///< the same if the bytes of its elements were little-endian
  std::vector<int64_t> extents{};
  int64_t count = 0;      ///< elements; their bytes are within the bounds above
  std::string fault{};    ///< why an array of type `other` that seems to hold floats is not read
  std::string content{};  ///< "integers of 1 byte", "text", …
  uint64_t address = 0;   ///< of its header: the same for all names of a dataset, never 0
};

/// A link that leads to no object of the file.
struct DeadLink {
  std::string path{};
  bool other_file = false;  ///< an external link, or one through such a link
};

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path);
  Reader(Reader&&) noexcept;
  Reader& operator=(Reader&&) = delete;
  ~Reader();

  uint64_t size() const;  ///< of the file, bytes
  bool exists(const std::string& path) const;
  /// Names in a group, in the order of creation where the file keeps an index of it, else by name.
  std::vector<std::string> children(const std::string& group) const;
  /// Paths of all datasets below the root, by hard and soft links.
  std::vector<std::string> datasets() const;
  /// Of all groups below the root.
  std::vector<DeadLink> dead_links() const;

  Dataset describe(const std::string& path) const;
  /// All elements: of the file's type; any numbers as fp32, integers also as int64.
  void read(const std::string& path, Type type, std::span<std::byte> out) const;
  /// Bytes [first, first + out.size()) of the elements, in the file's type.
  void read_part(const std::string& path, uint64_t first, std::span<std::byte> out) const;

  std::vector<std::string> attributes(const std::string& path) const;
  std::string text(const std::string& path, const std::string& name) const;
  /// Of a scalar or an array.
  std::vector<int64_t> integers(const std::string& path, const std::string& name) const;
  /// The text of a scalar dataset, of up to 4 KiB.
  std::string text_of(const std::string& path) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace espalier::io::hdf5
