#pragma once
// A model in one or several safetensors files, as one reader.
//
//   DIR/model.safetensors                    one file, or
//   DIR/model.safetensors.index.json         {"metadata": {…}, "weight_map": {NAME: FILE}}, and
//   DIR/model-00001-of-00003.safetensors …   the files (shards) that it names, in the same folder
//
// The index decides which shard a tensor is read from. A hostile index reads nothing outside its
// folder: names of shards have no "/" and are not "..". `metadata.total_size` is not checked,
// because published models have wrong ones.
#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors/reader.h"

namespace espalier::io {

class ShardedSafetensors {
 public:
  /// `path`: a safetensors file, an index, or a folder. Of a folder, the first of these that it
  /// has: model.safetensors, model.safetensors.index.json, its only index, its only safetensors
  /// file. Throws Failure if the folder has no model, or parts of it are missing.
  explicit ShardedSafetensors(const std::filesystem::path& path);

  /// The file that was opened: the index, or the only shard.
  const std::filesystem::path& path() const { return path_; }
  const std::vector<SafetensorsReader>& shards() const { return shards_; }
  /// Shard by shard, in the order of their data: read in this order, each is read from front to
  /// end. Tensors that the index does not list count, too, as in transformers.
  const std::vector<std::string>& names() const { return names_; }
  /// Of all shards; where they differ, the first one's.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // As of SafetensorsReader:
  bool has(const std::string& name) const { return shard_of_.contains(name); }
  const SafetensorsTensor& tensor(const std::string& name) const {
    return shard(name).tensor(name);
  }
  void read_bytes(const std::string& name, std::span<std::byte> out, uint64_t first = 0) const {
    shard(name).read_bytes(name, out, first);
  }
  void read(const std::string& name, const Tensor& out, int64_t first = 0) const {
    shard(name).read(name, out, first);
  }
  void read(const std::string& name, std::span<float> out, int64_t first = 0) const {
    shard(name).read(name, out, first);
  }
  std::vector<float> read(const std::string& name) const { return shard(name).read(name); }
  /// The shard that has a tensor. Throws Failure if the model has no such tensor.
  const SafetensorsReader& shard(const std::string& name) const;

 private:
  void open_index();

  std::filesystem::path path_;
  std::vector<SafetensorsReader> shards_;
  std::vector<std::string> names_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, size_t, std::less<>> shard_of_;  ///< name → index of shards_
};

/// The `weight_map` of an index. Throws Failure, which begins with `file`, if the text is no index
/// or a shard's name leads out of its folder.
std::map<std::string, std::string> parse_safetensors_index(std::string_view json,
                                                           std::string_view file);

inline constexpr std::string_view kSafetensorsSuffix = ".safetensors";
inline constexpr std::string_view kSafetensorsIndexSuffix = ".index.json";

}  // namespace espalier::io
