#pragma once
// Families of Hugging Face models; the list is in registry.cpp. A family translates
// config.json to the keys of [model] and back, and names the tensors of its files.
//
//   table = family.tensors(model)     GPT-2: {"h.{}.ln_1.weight", "blocks.{}.norm1.weight"}, …
//
// Every parameter of the network is in the table; layout.h checks it against files.
#include <string>
#include <string_view>
#include <vector>

#include "io/config/config.h"
#include "src/core/registry.h"
#include "src/hub/config_json.h"

namespace espalier::hub {

/// How the elements of a tensor lie in a parameter. Both are row-major; a vector has one column.
enum class Form : uint8_t {
  same,
  transposed,  ///< the tensor is [in, out], the parameter [out, in]
  fused,       ///< rows are [heads, 3, D] in the tensor and, for one of the three, [heads, D] here
};

/// A parameter and its tensor. Several parameters may share a tensor (form fused).
struct TensorRule {
  std::string tensor{};     ///< name without the family's prefix; "{}": number of the block
  std::string parameter{};  ///< name; "{}": likewise
  Form form = Form::same;
  int64_t heads = 0, part = 0;  ///< of form fused: part 0 to 2
  int64_t skipped = 0;          ///< first rows of the tensor, which the network does not use
  /// One row a position: the tensor may have more rows than the network has positions.
  bool positions = false;
  /// Parameter = tensor + 1, in fp32 (norms of Gemma).
  bool plus_one = false;
  bool prefixed = true;  ///< the family's prefix stands before `tensor`
};

struct Family {
  std::string_view name;  ///< `model_type` of config.json
  std::string_view help;
  std::string_view architecture;  ///< the entry of `architectures`
  std::string_view base;          ///< that of the model without its head
  std::string_view prefix;        ///< of tensor names; files of a base model lack it
  /// Sets [model], without its context. Throws Failure that names a key that is not supported.
  void (*read)(const ConfigJson& json, io::ModelConfig& model) = nullptr;
  /// Key with the largest number of positions.
  std::string_view positions_key;
  /// Whether `tensors` names all parameters of such a network. Export also checks that `read` gives
  /// back what `write` was given.
  bool (*fits)(const io::ModelConfig& model) = nullptr;
  /// The config.json of such a network. `model` is complete (network_settings.h), with vocabulary.
  Json (*write)(const io::ModelConfig& model) = nullptr;
  std::vector<TensorRule> (*tensors)(const io::ModelConfig& model) = nullptr;
  /// Tensors that files may have and the network needs not: "h.{}.attn.bias".
  std::vector<std::string> (*ignored)(const io::ModelConfig& model) = nullptr;
};

Registry<Family> families();
/// The family of a config.json. Throws Failure that lists the architectures, and names the nearest.
const Family& family_of(const ConfigJson& json);
/// The family that describes a network. Throws Failure that lists the names.
const Family& family_of(const io::ModelConfig& model);

/// Throws Failure for keys that no family supports, such as quantization_config.
void check_common_keys(const ConfigJson& json);
/// The keys that neither the family has read nor transformers reads for such a model.
std::vector<std::string> keys_without_effect(const ConfigJson& json);

}  // namespace espalier::hub
