#pragma once
// Plain HDF5 files of dense arrays, such as h5py users write. Import: every float16, bfloat16,
// float32 or float64 dataset at any depth, named by its path with '/' replaced by '.'; other types
// are skipped and listed. Export: dense float32 datasets under their names in the root. Both stream
// one array at a time.
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/core/types.h"

namespace espalier::io {

class PlainReader {
 public:
  explicit PlainReader(std::filesystem::path path);
  ~PlainReader();
  PlainReader(PlainReader&&) noexcept;
  PlainReader& operator=(PlainReader&&) = delete;

  std::vector<std::string> names() const;    ///< sorted
  std::vector<std::string> skipped() const;  ///< datasets that are not floating-point
  bool has(const std::string& name) const;
  Shape shape(const std::string& name) const;
  /// Row-major, as float.
  std::vector<float> read(const std::string& name) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class PlainWriter {
 public:
  explicit PlainWriter(std::filesystem::path path);
  ~PlainWriter();  ///< without commit: removes the temporary file
  PlainWriter(PlainWriter&&) noexcept;
  PlainWriter& operator=(PlainWriter&&) = delete;

  void write(const std::string& name, const Shape& shape, std::span<const float> values);
  void commit();  ///< atomically in place of `path`

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace espalier::io
