#pragma once
// Reads one safetensors file that may come from anywhere (header.h: the format and its checks).
//
//   SafetensorsReader file("model.safetensors");
//   for (const SafetensorsTensor& tensor : file.tensors()) {
//     file.read(tensor.name, values);           all elements as fp32, or a part: tensor by tensor
//   }                                           in this order, the file is read from front to end
//
// Nothing is mapped into memory: a file that loses its end, or whose disk fails, gives a Failure
// instead of SIGBUS. Values are converted in pieces of 256 KiB, or read directly where the types
// are the same, so that memory holds nothing but the caller's part of a tensor. Changes of content
// while a file is read are not noticed. One thread at a time uses a reader; several readers may
// read one file.
#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "io/files/raw_file.h"
#include "io/safetensors/header.h"
#include "src/core/tensor.h"

namespace espalier::io {

class SafetensorsReader {
 public:
  /// Throws Failure if the file is missing, or breaks the format's rules.
  explicit SafetensorsReader(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  /// In the order of their data.
  const std::vector<SafetensorsTensor>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  bool has(const std::string& name) const { return places_.contains(name); }
  /// Throws Failure if there is none.
  const SafetensorsTensor& tensor(const std::string& name) const;

  /// Bytes [first, first + out.size()) of a tensor of any type.
  void read_bytes(const std::string& name, std::span<std::byte> out, uint64_t first = 0) const;
  /// Elements [first, first + out.count()), row-major, of types F64, F32, F16 and BF16. `out` is
  /// contiguous fp32, bf16 or fp16 on the host. Throws Failure for other types.
  void read(const std::string& name, const Tensor& out, int64_t first = 0) const;
  void read(const std::string& name, std::span<float> out, int64_t first = 0) const;
  /// All elements.
  std::vector<float> read(const std::string& name) const;

 private:
  void load(const SafetensorsTensor& tensor, uint64_t first, std::span<std::byte> out) const;

  std::filesystem::path path_;
  mutable RawFile file_;  ///< notes the errors of reads
  uint64_t data_ = 0;     ///< where the data begin, bytes
  SafetensorsHeader header_{};
  std::map<std::string, size_t, std::less<>> places_{};  ///< name → index of tensors()
};

}  // namespace espalier::io
