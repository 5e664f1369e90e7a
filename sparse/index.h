#pragma once
// An index: the positions of the kept elements of one parameter, in one of several encodings. It is
// stored once and shared by every compressed tensor of the parameter (gradient, master, moments).
//
//   encoding   bytes a kept element (density f)   form
//   full       0                                  every element is kept
//   int32      4                                  SAMO's: ascending positions over the flattened tensor
//   delta      about 1 for f > 1/128              LEB128 varints of gaps, a restart point every 1,024
//   bitmap     (1/8 + 1/128) / f                  one bit an element, a rank every 512 bits
//
// Source: SAMO (IPDPS 2023) section III for int32; ranks after Jacobson, FOCS 1989.
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "sparse/mask.h"
#include "src/core/arena.h"
#include "src/kernels/kernels.h"

namespace espalier::sparse {

enum class Encoding : uint8_t { full, int32, delta, bitmap };
std::string_view name_of(Encoding encoding);
/// Throws Failure that lists the names.
Encoding encoding_by_name(std::string_view name);
/// The smallest encoding at this density among those whose kernels run at memory speed.
Encoding best_encoding(int64_t size, int64_t kept);
/// Bytes that an index of `kept` of `size` elements takes (delta: expected value for a random
/// mask). Zero when all are kept: such an index is always full.
size_t predicted_bytes(Encoding encoding, int64_t size, int64_t kept);
/// H(f) size / 8: no encoding of random masks is smaller on average.
double entropy_bound_bytes(int64_t size, int64_t kept);

class Index {
 public:
  Index() = default;  ///< full, of size 0
  /// Encodes `mask` into memory of `arena`. A mask that keeps everything gives `full`; asking for
  /// `full` with any other mask is a Bug. In a dry arena only the bytes are taken, as in `planned`.
  Index(Arena& arena, const Mask& mask, Encoding encoding);
  /// Of `size` elements, all kept.
  static Index full(int64_t size);
  /// For dry runs: takes the predicted bytes, holds no positions.
  static Index planned(Arena& arena, int64_t size, int64_t kept, Encoding encoding);

  Encoding encoding() const { return encoding_; }
  int64_t size() const { return size_; }
  int64_t kept() const { return kept_; }
  double density() const;
  size_t bytes() const;  ///< measured: what the arena holds for it
  /// True in a dry arena: sizes are known, positions are not; reading them is a Bug.
  bool dry() const { return dry_; }

  Mask mask() const;
  std::vector<int32_t> positions() const;
  /// The positions of kept elements [first, first + out.size()), whatever the encoding.
  void decode(int64_t first, std::span<int32_t> out) const;
  /// What kernels read. `delta` has no kernel form of its own: it is decoded into `scratch`, which
  /// then needs room for `kept()` positions and must live as long as the view.
  kernels::Positions view(std::span<int32_t> scratch = {}) const;
  /// Kept elements at dense positions below `dense` (rank query), dense in [0, size].
  int64_t kept_before(int64_t dense) const;

  /// The encoded bytes as they go into a file, little end first: positions, varints or bitmap words
  /// (ranks and restart points are built again when read). One mask has one form in each encoding.
  std::vector<uint8_t> to_bytes() const;
  /// Checks everything (count, order, range, trailing bytes) and throws Failure naming what is
  /// wrong: bytes may come from anywhere.
  static Index from_bytes(Arena& arena, Encoding encoding, int64_t size, int64_t kept,
                          std::span<const uint8_t> bytes);

 private:
  Index(int64_t size, int64_t kept, Encoding encoding);
  void allocate(Arena& arena, size_t data_bytes);
  void require_positions() const;

  Encoding encoding_ = Encoding::full;
  int64_t size_ = 0;
  int64_t kept_ = 0;
  bool dry_ = false;
  Buffer data_;   ///< int32 positions | varint bytes | bitmap words
  Buffer ranks_;  ///< bitmap: uint32 a 512 bits; delta: restart points {position, byte offset}
};

}  // namespace espalier::sparse
