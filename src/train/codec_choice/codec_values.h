#pragma once
// Loads values on which codecs are tested: a raw file, a checkpoint, or random numbers. All of them
// are converted to fp32 and concatenated in one flat array.
//
// Errors: Failure for a missing, empty or damaged file, a file that is no whole number of elements,
// a file that is no checkpoint, and a checkpoint without the requested arrays. NaN and infinite
// values are accepted.
#include <filesystem>
#include <string>
#include <vector>

#include "parallel/partition.h"
#include "src/core/arena.h"

namespace espalier::train {

struct CodecValues {
  struct Part {
    std::string name;  ///< name of the parameter; empty: no parameter
    Range range;
  };
  Buffer values;  ///< fp32 [n]
  std::vector<Part> parts;
  std::string
      kind;  ///< "fp32", "bf16", "fp16", "moment1", "values", "normal", "heavy" or "uniform"
};

/// Reads a headerless file of little-endian fp32, bf16 or fp16 numbers.
CodecValues raw_values(Arena& arena, const std::filesystem::path& path, DType dtype);

struct CheckpointChoice {
  std::string pattern = "*";  ///< glob of parameter names (io/config/patterned.h)
  std::string what{};         ///< "values" or "moment1"; empty: moment1 if all matches have one
};
/// One part per parameter that has kept elements. A part holds the kept elements only, as ranks
/// exchange them. A checkpoint holds no gradients; the first moment is their running mean.
CodecValues checkpoint_values(Arena& arena, const std::filesystem::path& path,
                              const CheckpointChoice& choice);

/// Element i is a function of (seed, i). "normal": N(0, 1). "heavy": N e^(1.5 N'), whose tails
/// resemble those of gradients over many layers. "uniform": [0, 1).
CodecValues synthetic_values(Arena& arena, const std::string& kind, int64_t count, uint64_t seed);

}  // namespace espalier::train
