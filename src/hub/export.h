#pragma once
// Checkpoint → Hugging Face directory: config.json, the tokenizer's files, model.safetensors or
// shards with an index, and with `sparse` the sparse form (tensor_source.h), sparse.safetensors.
//
// Parameters whose elements are all kept go through in pieces of 4 MiB. Of masked ones the kept
// values are in memory, one tensor at a time; of a transposed tensor (GPT-2) also its dense form.
// The directory appears whole or not at all.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/core/types.h"

namespace espalier::hub {

struct ExportOptions {
  std::filesystem::path from;
  std::filesystem::path to;
  std::optional<DType> dtype{};  ///< of all values; none: as imported, or as in the checkpoint
  uint64_t shard_bytes = 5'000'000'000;
  bool dense = true;
  bool sparse = false;
  /// `done` of `total` elements are read; null: not called.
  std::function<void(int64_t done, int64_t total)> on_progress{};
};

struct ExportReport {
  std::string architecture{};
  size_t tensors = 0, files = 0;
  uint64_t dense_bytes = 0, sparse_bytes = 0;  ///< of the tensors
  bool tokenizer = false;
};

/// Throws Failure, with nothing written, if `to` is not empty, the checkpoint is damaged, or no
/// family describes its network.
ExportReport export_model(const ExportOptions& options);

}  // namespace espalier::hub
