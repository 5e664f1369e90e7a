#pragma once
// The tensors of a Hugging Face model, dense or in the sparse form that export writes:
//
//   NAME            dense
//   NAME.values     kept elements in row-major order   }
//   NAME.index      U8: bit i % 8 of byte i / 8 is 1   }  masked; docs/formats.md
//                   if element i is kept               }
//   NAME.shape      I64: extents                       }
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors/sharded.h"
#include "src/hub/masked_array.h"

namespace espalier::hub {

inline constexpr std::string_view kValuesSuffix = ".values";
inline constexpr std::string_view kIndexSuffix = ".index";
inline constexpr std::string_view kShapeSuffix = ".shape";

struct SourceTensor {
  std::string name{};
  std::vector<int64_t> shape{};
  io::SafetensorsType type = io::SafetensorsType::f32;
  bool masked = false;
  int64_t count() const;
  /// "[384, 1152]"
  std::string shape_text() const;
};

class TensorSource {
 public:
  /// `path` as of io::ShardedSafetensors.
  explicit TensorSource(const std::filesystem::path& path);

  /// The file that was opened.
  const std::filesystem::path& path() const { return files_.path(); }
  /// In the order of names.
  const std::map<std::string, SourceTensor>& tensors() const { return tensors_; }
  bool has(const std::string& name) const { return tensors_.contains(name); }
  const SourceTensor& tensor(const std::string& name) const { return tensors_.at(name); }

  /// Gives a tensor another name.
  void rename(const std::string& name, const std::string& other);

  /// Elements [first, first + out.count()) of a tensor of type F64, F32, F16 or BF16, as the type
  /// of `out`. `kept`: empty, or 1 for each element that the index keeps (of a dense tensor: for
  /// all), else 0. Of a masked tensor, mask and values stay in memory until another one is read.
  void read(const std::string& name, int64_t first, const Tensor& out,
            std::span<uint8_t> kept = {}) const;

 private:
  std::optional<SourceTensor> masked_tensor(const std::string& values) const;
  const MaskedArray& masked_array(const SourceTensor& tensor) const;

  /// Its name in the files.
  const std::string& stored_name(const SourceTensor& tensor) const {
    return renamed_ == tensor.name ? stored_ : tensor.name;
  }

  io::ShardedSafetensors files_;
  std::string renamed_{}, stored_{};
  std::map<std::string, SourceTensor> tensors_{};
  mutable std::string opened_{};  ///< name of the masked tensor in `array_`
  mutable std::unique_ptr<MaskedArray> array_{};
};

}  // namespace espalier::hub
