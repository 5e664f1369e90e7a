#pragma once
// An index: the positions of the kept elements of one parameter, in one of several encodings. It is
// stored once and shared by every compressed tensor of the parameter (gradient, master, moments).
//
//   encoding    bits a kept element (density f)   form
//   full        0                                 every element is kept
//   int32       32                                SAMO's: ascending positions over the flattened tensor
//   delta       about 8 for f > 1/128             LEB128 varints of gaps
//   bitmap      1.06 / f                          one bit an element, a rank every 512
//   golomb      within 4 % of H(f) / f, f < 0.4   Rice code of gaps, low bits and unary parts apart
//   elias-fano  about 2.3 + log2(1 / f)           low bits of positions, high bits in unary
//   nm          n log2(m) a group of m            places of at most n kept of m in a row
//   block       1 a block                         whole blocks of the matrix are kept
//   entropy     at most 1.01 H(f) / f             arithmetic code with contexts, in files only
//
// int32 and bitmap are read by kernels as they are; the others are decoded to a bitmap with ranks
// in scratch. Restart points: 0.06 bits a kept element (delta, golomb), half of it (elias-fano).
// Sources: SAMO (IPDPS 2023) section III for int32; ranks after Jacobson, FOCS 1989; Rice, JPL
// 79-22, 1979; Elias, JACM 1974 and Fano 1971, restart points after Vigna, WSDM 2013.
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "sparse/index/mask.h"
#include "src/core/arena.h"
#include "src/kernels/kernels.h"

namespace espalier::sparse {

enum class Encoding : uint8_t {
  full,
  int32,
  delta,
  bitmap,
  golomb,
  elias_fano,
  nm,
  block,
  entropy
};
std::string_view name_of(Encoding encoding);
/// Throws Failure that lists the names.
Encoding encoding_by_name(std::string_view name);

/// What is known of a parameter beside its mask; zero: not known. `nm` needs cols, n and m, `block`
/// cols, height and width; the others need nothing.
struct IndexShape {
  int64_t cols = 0;    ///< elements of a row; divides the size
  int64_t height = 0;  ///< of blocks, which start at row and column 0 and are cut at the edges
  int64_t width = 0;
  int n =
      0;  ///< at most n of every m consecutive elements of a row, groups as pruning/nm.cpp makes
  int m = 0;
  bool operator==(const IndexShape&) const = default;
};

/// Whether groups of m keep at most n. Throws Failure for a shape that cannot be.
bool fits_nm(const Mask& mask, int64_t cols, int n, int m);
/// Whether each block of height x width is kept as a whole or not at all. Throws Failure likewise.
bool fits_block(const Mask& mask, int64_t cols, int64_t height, int64_t width);

/// The smallest encoding for memory at this density whose decoding is fast: bitmap, or golomb where
/// it saves a tenth of that.
Encoding best_encoding(int64_t size, int64_t kept);
/// The same where also nm and block may do, if `shape` has them and the mask fits.
Encoding best_encoding(const Mask& mask, const IndexShape& shape);
/// The same for masks to come, of a method that keeps the groups or blocks that `shape` has.
Encoding best_encoding(int64_t size, int64_t kept, const IndexShape& shape);
/// Bytes that an index of `kept` of `size` elements takes (delta, golomb, entropy: expected value
/// for a random mask). Zero when all are kept: such an index is always full.
size_t predicted_bytes(Encoding encoding, int64_t size, int64_t kept, const IndexShape& shape = {});
/// H(f) size / 8: no encoding of random masks is smaller on average.
double entropy_bound_bytes(int64_t size, int64_t kept);

class Index {
 public:
  Index() = default;  ///< full, of size 0
  /// Encodes `mask` into memory of `arena`. A mask that keeps everything gives `full`; asking for
  /// `full` with any other mask is a Bug, as is `entropy`. Throws Failure when the mask does not
  /// fit `nm` or `block`. In a dry arena only the bytes are taken, as in `planned`.
  Index(Arena& arena, const Mask& mask, Encoding encoding, const IndexShape& shape = {});
  /// Of `size` elements, all kept.
  static Index full(int64_t size);
  /// For dry runs: takes the predicted bytes, holds no positions.
  static Index planned(Arena& arena, int64_t size, int64_t kept, Encoding encoding,
                       const IndexShape& shape = {});

  Encoding encoding() const { return encoding_; }
  int64_t size() const { return size_; }
  int64_t kept() const { return kept_; }
  /// As given.
  const IndexShape& shape() const { return shape_; }
  double density() const;
  size_t bytes() const;  ///< measured: what the arena holds for it
  /// True in a dry arena: sizes are known, positions are not; reading them is a Bug.
  bool dry() const { return dry_; }

  Mask mask() const;
  std::vector<int32_t> positions() const;
  /// The positions of kept elements [first, first + out.size()), whatever the encoding.
  void decode(int64_t first, std::span<int32_t> out) const;
  /// Words [first, first + out.size()) of the bitmap (kernels.h), whatever the encoding.
  void decode_words(int64_t first, std::span<uint64_t> out) const;
  /// Bytes of scratch that `view` needs: words and ranks of a bitmap, or 0 where kernels read the
  /// encoding itself.
  size_t scratch_bytes() const { return scratch_bytes(encoding_, size_); }
  static size_t scratch_bytes(Encoding encoding, int64_t size);
  /// What kernels read. `scratch` is 8-aligned, has scratch_bytes() and lives as long as the view.
  kernels::Positions view(std::span<uint8_t> scratch = {}, int threads = 1) const;
  /// Kept elements at dense positions below `dense` (rank query), dense in [0, size].
  int64_t kept_before(int64_t dense) const;

  /// The encoded bytes as they go into a file (docs/formats.md); ranks and restart points are built
  /// again when read. One mask has one form in each encoding.
  std::vector<uint8_t> to_bytes() const;
  /// Checks everything (count, order, range, trailing bytes) and throws Failure naming what is
  /// wrong: bytes may come from anywhere. Not for `entropy`: see file_index.h.
  static Index from_bytes(Arena& arena, Encoding encoding, int64_t size, int64_t kept,
                          std::span<const uint8_t> bytes);

 private:
  Index(int64_t size, int64_t kept, Encoding encoding, const IndexShape& shape);
  void allocate(Arena& arena, size_t data_bytes);
  void build_ranks();
  struct Coded coded() const;
  void require_positions() const;

  Encoding encoding_ = Encoding::full;
  int64_t size_ = 0;
  int64_t kept_ = 0;
  IndexShape shape_;
  bool dry_ = false;
  Buffer data_;   ///< as `to_bytes`, less the shape
  Buffer ranks_;  ///< 32-bit numbers
};

}  // namespace espalier::sparse
