#pragma once
// Values to try codecs on: the numbers of a raw file, a checkpoint's, or drawn ones. Whatever they
// were stored as, they become fp32, one after the other in one flat array.
//
// Errors: Failure for a file that is missing or empty, not a whole number of elements, no
// checkpoint, damaged, or without what was asked for. NaN and infinite values are taken as such.
#include <filesystem>
#include <string>
#include <vector>

#include "parallel/reduction/partition.h"
#include "src/core/arena.h"

namespace espalier::train {

struct CodecValues {
  struct Part {
    std::string name;  ///< of a parameter; empty where there is none
    parallel::Range range;
  };
  Buffer values;  ///< fp32 [n]
  std::vector<Part> parts;
  std::string
      kind;  ///< "fp32", "bf16", "fp16", "moment1", "values", "normal", "heavy" or "uniform"
};

/// A file of little-endian numbers and nothing else; fp32, bf16 or fp16.
CodecValues raw_values(Arena& arena, const std::filesystem::path& path, DType dtype);

struct CheckpointChoice {
  std::string pattern = "*";  ///< of names of parameters (core/glob.h)
  std::string what{};         ///< "values" or "moment1"; empty: moment1 if all that match have one
};
/// A part for each parameter that has kept elements: those alone, which is what ranks exchange. A
/// checkpoint holds no gradients; the first moment is their running mean.
CodecValues checkpoint_values(Arena& arena, const std::filesystem::path& path,
                              const CheckpointChoice& choice);

/// Element i is a function of (seed, i): "normal" N(0, 1); "heavy" N e^(1.5 N'), with tails like
/// those of gradients over many layers; "uniform" in [0, 1).
CodecValues synthetic_values(Arena& arena, const std::string& kind, int64_t count, uint64_t seed);

}  // namespace espalier::train
