#pragma once
// Tiny models of each family, as directories of Hugging Face have them, with drawn weights.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "io/safetensors/type.h"

namespace espalier::hub {

/// A row for each registered family, and for the variants of its network.
struct ExampleModel {
  std::string architecture;
  std::string config;  ///< config.json
  std::string variant{};
};
const std::vector<ExampleModel>& example_models();
/// The first row.
const ExampleModel& example_model(const std::string& architecture);
/// The example of an architecture, with `key` set to the JSON text `value`; "" removes it.
std::string config_with(const std::string& architecture, const std::string& key,
                        const std::string& value);

/// A tokenizer.json of byte-level BPE, from the JSON of its parts.
std::string byte_level_tokenizer(const std::string& vocabulary, const std::string& merges = "[]",
                                 const std::string& added = "[]");
/// A special token "<x>" for the last of them.
std::string special_token(int id);

/// A tensor to write.
struct MadeTensor {
  io::SafetensorsType type = io::SafetensorsType::f32;
  std::vector<int64_t> shape{};
  std::vector<std::byte> bytes{};
};
using MadeTensors = std::map<std::string, MadeTensor>;

/// The tensors of a config.json with this text: a share of `zeros` of the elements is 0, some -0.
MadeTensors make_tensors(const std::string& config, io::SafetensorsType type, uint64_t seed = 1,
                         double zeros = 0);
/// Writes config.json and model.safetensors, or shards.
void write_model(const std::filesystem::path& folder, const std::string& config,
                 const MadeTensors& tensors, uint64_t shard_bytes = uint64_t{1} << 40);
/// Writes the example of GPT-2 in fp32, and returns its tensors.
MadeTensors write_gpt2(const std::filesystem::path& folder);
/// The tensors of a folder.
MadeTensors read_model(const std::filesystem::path& folder);
/// The first difference in words; empty: equal.
std::string difference(const MadeTensors& a, const MadeTensors& b);

}  // namespace espalier::hub
