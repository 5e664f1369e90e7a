#pragma once
// An index: the positions of the kept elements of one parameter, in one of the encodings of
// registry.h. It is stored once and shared by every compressed tensor of the parameter (gradient,
// master copy, moments).
//
//   encoding    bits per kept element (density f) form
//   full        0                                 every element is kept
//   int32       32                                SAMO's: ascending positions in the flat tensor
//   bitmap      1.06 / f                          one bit per element, a prefix count every 512
//   golomb      within 4 % of H(f) / f, f < 0.4   Rice code of gaps, low bits and unary parts apart
//   nm          ceil(log2 m) in full groups       places of at most n kept of m in a row
//   block       1 / (f · elements of a block)     whole blocks of the matrix are kept
//
// Kernels read int32 and bitmap as they are; the others are decoded to a bitmap with its prefix
// counts in scratch. Restart points of golomb: 0.06 bits per kept element. Sources: SAMO (IPDPS
// 2023) section III for int32; prefix counts after Jacobson, FOCS 1989; Rice, JPL 79-22, 1979.
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sparse/index/encoding.h"
#include "sparse/index/registry.h"
#include "src/core/arena.h"
#include "src/kernels/kernels.h"

namespace espalier::sparse {

class Index {
 public:
  Index() = default;  ///< full, of size 0
  /// Encodes `mask` into memory of `arena`. A mask that keeps everything gives `full`. Bug:
  /// `full` for any other mask. Throws Failure when the encoding cannot hold the mask. A dry arena
  /// counts the bytes only, as in `planned`.
  Index(Arena& arena, const Mask& mask, const Encoding& encoding, const IndexShape& shape = {});
  /// Of `size` elements, all kept. Stores no positions: `size` is at most kMaxPlannedElements.
  static Index full(int64_t size);
  /// For dry runs: allocates the predicted bytes, holds no positions.
  static Index planned(Arena& arena, int64_t size, int64_t kept, const Encoding& encoding,
                       const IndexShape& shape = {});

  const Encoding& encoding() const { return encoding_; }
  int64_t size() const { return size_; }
  int64_t kept() const { return kept_; }
  /// As passed to the constructor.
  const IndexShape& shape() const { return shape_; }
  double density() const;
  size_t bytes() const;  ///< measured by the arena
  /// Its memory, in which no bit changes; empty ones are unused.
  std::array<Tensor, 2> memory() const { return {data_.tensor(), prefix_counts_.tensor()}; }
  /// True in a dry arena: sizes are known, positions are not; reading them is a Bug.
  bool dry() const { return dry_; }

  Mask mask() const;
  std::vector<int32_t> positions() const;
  /// The positions of kept elements [first, first + out.size()), whatever the encoding.
  void decode(int64_t first, std::span<int32_t> out) const;
  /// Words [first, first + out.size()) of the bitmap (kernels.h), whatever the encoding.
  void decode_words(int64_t first, std::span<uint64_t> out) const;
  /// Bytes of scratch that `view` needs: a bitmap with its prefix counts, or 0 where kernels read
  /// the encoding itself.
  size_t scratch_bytes() const { return scratch_bytes(encoding_, size_); }
  static size_t scratch_bytes(const Encoding& encoding, int64_t size);
  /// The form that kernels read. `scratch` is 8-aligned, has scratch_bytes() and lives as long as
  /// the view.
  kernels::Positions view(std::span<uint8_t> scratch = {}, int threads = 1) const;
  /// Kept elements at dense positions below `dense`, in [0, size].
  int64_t kept_before(int64_t dense) const;

  /// The encoded bytes as they go into a file (docs/formats.md); prefix counts and restart points
  /// are built again when read. One mask has one form in each encoding.
  std::vector<uint8_t> to_bytes() const;
  /// Checks everything (count, order, range, trailing bytes) and throws Failure naming what is
  /// wrong: bytes may come from anywhere.
  static Index from_bytes(Arena& arena, const Encoding& encoding, int64_t size, int64_t kept,
                          std::span<const uint8_t> bytes);

 private:
  Index(int64_t size, int64_t kept, const Encoding& encoding, const IndexShape& shape);
  void allocate(Arena& arena, size_t data_bytes);
  void build_prefix_counts();
  Coded coded() const;
  void require_positions() const;

  Encoding encoding_ = Encoding::full;
  int64_t size_ = 0;
  int64_t kept_ = 0;
  IndexShape shape_;
  bool dry_ = false;
  Buffer data_;           ///< as `to_bytes`, without the shape
  Buffer prefix_counts_;  ///< 32-bit numbers
};

}  // namespace espalier::sparse
