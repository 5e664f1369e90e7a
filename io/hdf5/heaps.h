#pragma once
// Where HDF5 keeps names, attributes and texts outside of object headers. Formats: HDF5 File Format
// Specification 3.0, sections III.A (B-trees), III.D to III.G (heaps). Private to this folder.
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "io/hdf5/bounded_file.h"

namespace espalier::io::hdf5 {

/// Objects of a fractal heap, by heap id.
class FractalHeap {
 public:
  FractalHeap(BoundedFile& file, uint64_t address);
  std::vector<uint8_t> object(std::span<const uint8_t> id);

 private:
  struct Block {
    uint64_t address, offset, bytes;
  };
  /// A block with its checksum, read once.
  const std::vector<uint8_t>& indirect(uint64_t address, uint64_t bytes);
  const std::vector<uint8_t>& direct(const Block& block);
  Block find(uint64_t offset, uint64_t address, uint64_t base, uint64_t rows, int depth);
  uint64_t row_bytes(uint64_t row) const { return row == 0 ? start_ : start_ << (row - 1); }

  BoundedFile& file_;
  uint64_t address_;
  uint64_t most_object_ = 0, width_ = 0, start_ = 0, most_direct_ = 0, root_ = 0, rows_ = 0;
  uint64_t direct_rows_ = 0;
  size_t offset_bytes_ = 0, length_bytes_ = 0;
  bool checksums_ = false;
  std::map<uint64_t, std::vector<uint8_t>> blocks_;  ///< by address
};

/// Calls fn(record) for each record of a version 2 B-tree, in its order.
void for_each_record(BoundedFile& file, uint64_t address,
                     const std::function<void(std::span<const uint8_t>)>& fn);

/// A link of an old group: hard (to an object's address) or soft (to a path).
struct Symbol {
  std::string name;
  std::optional<uint64_t> object{};
  std::string target{};
};
/// Calls fn(symbol) for each link of an old group.
void for_each_symbol(BoundedFile& file, uint64_t tree, uint64_t heap,
                     const std::function<void(Symbol)>& fn);

/// Object `index` of the global heap collection at `address`.
std::vector<uint8_t> global_object(BoundedFile& file, uint64_t address, uint64_t index);

}  // namespace espalier::io::hdf5
