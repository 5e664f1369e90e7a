#pragma once
// Filters of chunks: deflate, shuffle, fletcher32 and lzf. Others are refused by name. Formats:
// HDF5 File Format Specification 3.0, section IV.A.2.l. Private to this folder.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace espalier::io::hdf5 {

struct Filter {
  uint64_t id = 0;
  std::string name{};  ///< in the file; often empty
  std::vector<uint32_t> parameters{};
};

/// Bytes that a filter makes of one stored byte, at most (deflate: 258 bytes of two bits).
inline constexpr uint64_t kMostExpansion = 1032;

/// "szip" of the first filter that cannot be undone; empty: none.
std::string unsupported(std::span<const Filter> filters);

/// Undoes the filters of a stored chunk, the last first; those whose bit is set in `skipped` were
/// not applied. `bytes`: those of the chunk's elements, which the result has. Throws FormatError.
std::vector<uint8_t> unfiltered(std::span<const Filter> filters, uint32_t skipped,
                                std::vector<uint8_t> stored, uint64_t bytes);

}  // namespace espalier::io::hdf5
