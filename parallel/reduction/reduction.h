#pragma once
// A reduction sums arrays (fp32, bf16 or fp16) over all ranks, in place and without blocking. It
// also runs the two halves of a sum, scatter and gather. parallel/reduction/registry.h lists the
// algorithms. Afterwards all ranks hold the same bits. Elements are sent plain, or encoded by the
// job's Wire.
#include <span>
#include <vector>

#include "parallel/transport/communicator.h"
#include "parallel/wire/wire.h"
#include "src/core/arena.h"

namespace espalier::parallel {

enum class Phases : uint8_t {
  both,     ///< all ranks get all sums
  scatter,  ///< rank r gets the sums of slice r; the rest of its array is undefined
  gather,   ///< no sum: all ranks get slice r as rank r holds it; any contents of 2 or 4 bytes
};

/// A job on one array. All ranks pass equal descriptions.
struct SliceJob {
  Tensor data;  ///< [n], contiguous, or empty; must stay untouched until done
  Phases phases = Phases::both;
  /// [p + 1], ascending from 0 to n: rank r owns elements [edges[r], edges[r + 1]); only `start`
  /// reads it. Empty: even slices.
  std::span<const int64_t> edges = {};
  int number = 0;  ///< distinguishes concurrent jobs of one communicator; below kReductionNumbers
  Wire* wire = nullptr;  ///< null: elements are sent plain
  int64_t first = 0;     ///< index of data[0] in the array of `wire`
};
inline constexpr int kReductionNumbers = kTagNumbers / 2;

/// An algorithm that sums an array over the ranks of a communicator. One job at a time; reusable.
class Reduction {
 public:
  virtual ~Reduction() = default;

  /// Allocates what `start` allocates for such a job, the same on all ranks. Memory is kept and
  /// only grows. Reads no elements: plans call it on a dry arena.
  virtual void reserve(const SliceJob& /*job*/) {}
  /// Starts a job. A reduction made for gradients does not support `Phases::gather`.
  virtual void start(const SliceJob& job) = 0;
  /// Makes all progress that is possible without waiting.
  virtual Progress advance() = 0;
  /// Ranks whose messages are outstanding.
  virtual std::vector<int> missing() const = 0;

  /// Blocks; throws PeerLost.
  void wait(Communicator& comm);
};

struct PieceOptions {
  size_t piece_bytes = kPieceBytes;  ///< of elements in one message, at most
  /// Pieces to be summed shrink (to 4 KiB) so that four from each peer fit.
  size_t staging_bytes = size_t{4} << 20U;
};

// For implementations:

inline constexpr size_t kLine = 64;             ///< pieces and even slices begin at cache lines
inline constexpr size_t kSmallestPiece = 4096;  ///< bytes
constexpr size_t whole_lines(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }
/// The edges of the job, or of even slices: [ranks + 1].
std::vector<int64_t> edges_of(const SliceJob& job, int ranks);
int64_t longest_slice(std::span<const int64_t> edges);

/// The slices of a job, each cut into pieces of `piece_elements` (the last may be smaller).
class SlicePieces {
 public:
  struct Piece {
    Tensor elements;
    int64_t number = 0;  ///< of the first element, in the wire's numbering
    size_t bytes = 0;    ///< of its message
  };

  SlicePieces() = default;
  SlicePieces(const SliceJob& job, std::vector<int64_t> edges, int64_t piece_elements)
      : job_(job), edges_(std::move(edges)), piece_elements_(piece_elements) {}

  /// Number of pieces.
  int64_t count(int slice) const {
    return (edges_[slice + 1] - edges_[slice] + piece_elements_ - 1) / piece_elements_;
  }
  int64_t most() const { return (longest_slice(edges_) + piece_elements_ - 1) / piece_elements_; }
  /// Empty past the end of the slice.
  Piece at(int slice, int64_t index) const;
  size_t longest_message() const;

 private:
  SliceJob job_;
  std::vector<int64_t> edges_;
  int64_t piece_elements_ = 1;
};

}  // namespace espalier::parallel
