#pragma once
// Names and small rules that writer and reader of checkpoints share. Internal to io.
#include <array>
#include <span>
#include <string>
#include <string_view>

#include "io/checkpoint/checkpoint.h"
#include "io/hdf5/hdf5.h"
#include "src/core/tensor.h"

namespace espalier::io {

inline constexpr std::string_view kCheckpointFormat = "espalier-checkpoint";
/// Those of sparse/index/index.h; a reader that lacks one says so.
inline constexpr std::array<std::string_view, 9> kIndexEncodings{
    "full", "int32", "delta", "bitmap", "golomb", "elias-fano", "nm", "block", "entropy"};

inline std::string parameter_path(const std::string& name) { return "/params/" + name; }
inline std::string optimizer_path(const std::string& name) { return "/optim/" + name; }

/// What checkpoints hold of the optimizer, of error feedback, and of codec powersgd.
inline bool is_optimizer_kind(std::string_view kind) {
  return kind == "master" || kind == "moment1" || kind == "moment2" ||
         kind.starts_with("feedback.") || kind == kLowRankKind;
}

/// xxHash64 with seed 0, 16 hex digits.
std::string checksum_of(std::span<const std::byte> bytes);
/// The attributes of /meta that are not free.
bool is_reserved(std::string_view attribute);
/// Elements of `index` for this encoding: int32 positions for "int32", else bytes.
hdf5::Type index_type(std::string_view encoding);
/// Throws Bug for element types that checkpoints do not hold.
hdf5::Type stored_type(DType dtype);

}  // namespace espalier::io
