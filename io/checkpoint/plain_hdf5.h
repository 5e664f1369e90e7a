#pragma once
// Plain HDF5 files, such as h5py users write. Import: every float dataset at any depth and every
// sparse matrix is an array, named by its path with '/' replaced by '.'; masks belong to their
// arrays (plain_arrays.h); other types are skipped and listed. Export: dense float32 datasets under
// their names in the root. Both stream one array at a time.
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/checkpoint/plain_arrays.h"
#include "io/hdf5/reader.h"
#include "src/core/types.h"

namespace espalier::io {

/// Rows [first, first + rows) of an array of the file, in another layout.
struct ArrayPart {
  std::string array{};  ///< its name in the file
  int64_t first = 0, rows = 0;
  bool transposed = false;     ///< a matrix; rows are those after it is transposed
  bool channels_last = false;  ///< of [out, channels, height, width] → [out, height width channels]
  int64_t channels = 0;        ///< above 0: columns [channels, positions] → [positions, channels]
};

/// A parameter as parts of arrays, one below the other; no parts: zeros.
struct ArrayView {
  Shape shape{};
  std::vector<ArrayPart> parts{};
  float added = 0;           ///< to each element
  std::string subtracted{};  ///< an array of as many elements, if not empty
};

/// (name, shape), for messages.
using NamedShapes = std::vector<std::pair<std::string, std::string>>;
/// "expected NAME SHAPE (nearest: NAME SHAPE, …)" for up to ten of `expected`, with the found names
/// that are nearest; then those that are nearest to none.
std::string expected_and_found(const NamedShapes& expected, const NamedShapes& found);

class PlainReader {
 public:
  /// Datasets and links whose names `left_out` accepts are as if the file did not have them.
  explicit PlainReader(std::filesystem::path path, const LeftOut& left_out = {});

  const std::filesystem::path& path() const { return path_; }
  std::vector<std::string> names() const;  ///< sorted
  /// Datasets that are no arrays, and links to other files or nowhere.
  const std::vector<std::string>& skipped() const { return arrays_.skipped; }
  /// The same by name, with their causes, which are what `shape` and `read` of them throw.
  const std::map<std::string, Unusable>& unusable() const { return arrays_.unusable; }
  /// (mask, array), by the names of masks.
  const std::map<std::string, std::string>& masks() const { return arrays_.masks; }
  /// Named like masks, but of no array.
  const std::vector<std::string>& loose_masks() const { return arrays_.loose_masks; }
  /// Also true for what cannot be read.
  bool has(const std::string& name) const;
  Shape shape(const std::string& name) const;
  NamedShapes named_shapes() const;
  /// Row-major, as float; elements that a mask drops, or a sparse matrix lacks, are zero.
  std::vector<float> read(const std::string& name) const;
  /// 1 for each element that the mask keeps or the sparse matrix stores; empty: it has no mask.
  std::vector<uint8_t> kept(const std::string& name) const;
  bool has_mask(const std::string& name) const;
  /// That holds the values: fp16 or bf16 where the file has no others, else fp32.
  DType type(const std::string& name) const;

  /// Whether two views of arrays of the file have equal values.
  bool same(const ArrayView& a, const ArrayView& b) const {
    return viewed(a).values == viewed(b).values;
  }

  /// From now on the names are those of `views`.
  void set_views(std::map<std::string, ArrayView> views) { views_ = std::move(views); }

 private:
  struct Contents {
    std::vector<float> values;
    std::vector<uint8_t> kept;  ///< empty: no mask
  };
  const PlainArray& array(const std::string& name) const;
  bool is_masked(const std::string& array_name) const;
  bool is_masked(const ArrayView& view) const;
  Shape array_shape(const std::string& name) const;
  Contents contents(const std::string& name) const;  ///< of an array of the file
  Contents viewed(const std::string& name) const;
  Contents viewed(const ArrayView& view) const;
  void read_sparse(const std::string& name, const PlainArray& array, Contents& out) const;
  std::vector<float> floats(const std::string& place, const std::string& name) const;
  std::vector<int64_t> integers(const std::string& place, const std::string& name) const;

  std::filesystem::path path_;
  hdf5::Reader file_;
  PlainArrays arrays_;
  std::map<std::string, ArrayView> views_{};  ///< empty: names are those of the arrays
};

class PlainWriter {
 public:
  explicit PlainWriter(const std::filesystem::path& path)
      : file_(hdf5::File::create(path, path.string() + " cannot be written")) {}

  void write(const std::string& name, const Shape& shape, std::span<const float> values);
  void commit() { file_.finish(); }  ///< atomically in place of `path`

 private:
  hdf5::File file_;
};

}  // namespace espalier::io
