#pragma once
// The elements of one parameter of a checkpoint, zero where pruned.
#include <memory>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "src/hub/masked_array.h"

namespace espalier::hub {

///   ParameterSource values(reader, name, dtype, whole);
///   values.read(first, out, kept);   from front to end; with `whole` anywhere
///   values.finish();                 verifies the checksum
class ParameterSource {
 public:
  /// `dtype`: that the values will be written in. Where the file has another one, the exact values
  /// (the optimizer's master copy) are read if there are any. Those, and kept values of masked
  /// parameters, are read into memory at once.
  ParameterSource(const io::CheckpointReader& reader, const std::string& name, DType dtype);

  bool masked() const { return array_ != nullptr; }
  /// The next elements, [first, first + out.count()), as the type of `out`. `kept`: empty, or 1 for
  /// each kept element, else 0.
  void read(int64_t first, const Tensor& out, std::span<uint8_t> kept);
  /// Throws Failure if the values do not match their checksum.
  void finish();

 private:
  void convert(int64_t first, const Tensor& out, std::span<uint8_t> kept);

  const io::CheckpointReader& reader_;
  std::string name_;
  DType stored_ = DType::fp32;  ///< of the values that are read
  bool streamed_ = false;
  int64_t next_ = 0;
  std::unique_ptr<io::CheckpointChecksum> sum_{};
  std::vector<std::byte> whole_{};  ///< not streamed, all elements kept
  std::unique_ptr<MaskedArray> array_{};
};

}  // namespace espalier::hub
