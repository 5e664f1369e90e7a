#pragma once
// Datasets in chunks: the six indexes of HDF5 1.0 to 1.14, and the elements behind them. Formats:
// HDF5 File Format Specification 3.0, sections III.A, III.C and VII. Private to this folder.
#include <span>
#include <vector>

#include "io/hdf5/bounded_file.h"
#include "io/hdf5/objects.h"

namespace espalier::io::hdf5 {

/// Bytes of fill values that a dataset may have beyond those of the file.
inline constexpr uint64_t kFillSlack = uint64_t{4} << 20;

/// The chunks that the file has of a dataset with elements, ascending. Throws FormatError if they
/// claim more bytes than they can hold, or if most of a large dataset was never written.
std::vector<Chunk> chunks_of(BoundedFile& file, const Object& dataset);

/// Bytes [first, first + out.size()) of the elements of a dataset whose `chunks` are known. Missing
/// chunks have the fill value. Memory: two chunks.
void read_chunks(BoundedFile& file, const Object& dataset, uint64_t first,
                 std::span<std::byte> out);

/// The fill value, once for each element; `first`: offset of `out` in the elements.
void write_fill(const Object& dataset, uint64_t first, std::span<std::byte> out);

}  // namespace espalier::io::hdf5
