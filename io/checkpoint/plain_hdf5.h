#pragma once
// Plain HDF5 files of dense arrays, such as h5py users write. Import: every float16, bfloat16,
// float32 or float64 dataset at any depth, named by its path with '/' replaced by '.'; other types
// are skipped and listed. Export: dense float32 datasets under their names in the root. Both stream
// one array at a time.
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "io/hdf5/reader.h"
#include "src/core/types.h"

namespace espalier::io {

class PlainReader {
 public:
  explicit PlainReader(std::filesystem::path path);

  std::vector<std::string> names() const;  ///< sorted
  /// Datasets that are not floating-point.
  const std::vector<std::string>& skipped() const { return skipped_; }
  bool has(const std::string& name) const { return places_.contains(name); }
  Shape shape(const std::string& name) const;
  /// Row-major, as float.
  std::vector<float> read(const std::string& name) const;

 private:
  const std::string& place(const std::string& name) const;

  std::filesystem::path path_;
  hdf5::Reader file_;
  std::map<std::string, std::string> places_;  ///< name → path in the file
  std::vector<std::string> skipped_;
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
