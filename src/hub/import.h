#pragma once
// Hugging Face directory → checkpoint.
//
// Tensors are read and parameters written in pieces of 4 MiB, by two threads. Transposed tensors
// (GPT-2) are in memory as a whole, one at a time, and the kept values of those that become masked
// two at a time: one is read while the other is written. The checkpoint appears whole or not at
// all.
//
// Its config: [model] of the family, data.kind = "tokens", and as train.dtype the type of the token
// embedding. Its texts: directory.h.
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/config/config.h"
#include "src/core/types.h"

namespace espalier::hub {

struct ImportOptions {
  std::filesystem::path from;  ///< the folder, its safetensors file or its index
  std::filesystem::path to;
  bool zeros_are_pruned = false;  ///< zeros of prunable parameters become their masks
  std::optional<DType> dtype{};   ///< of all values; none: each parameter's in the files
  int64_t context = 0;            ///< model.context; 0: the largest number of positions
  bool tokenizer = true;          ///< false: the tokenizer is left out
  /// `done` of `total` elements are read; null: not called.
  std::function<void(int64_t done, int64_t total)> on_progress{};
};

struct ImportReport {
  io::Config config{};
  std::string architecture{};
  int64_t parameters = 0, kept = 0;  ///< elements
  uint64_t bytes = 0;                ///< of the values
  int64_t tokens = 0;                ///< of the tokenizer; 0: none
  std::vector<std::string> notes{};
};

/// Throws Failure, with nothing written, unless every parameter of a supported family's network has
/// its tensor, and each other tensor is one that the family ignores.
ImportReport import_model(const ImportOptions& options);

}  // namespace espalier::hub
