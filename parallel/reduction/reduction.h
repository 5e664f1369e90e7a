#pragma once
// A reduction: sums of arrays (fp32, bf16 or fp16) over all ranks, in place and without blocking; and
// their two halves. How it goes about that is its own affair (parallel/reduction/registry.h lists them); afterwards
// all ranks hold the same bits. What travels are bytes: the elements as they are, or as the job's
// Wire makes them.
#include <span>
#include <vector>

#include "parallel/transport/communicator.h"
#include "parallel/wire/wire.h"
#include "src/core/arena.h"

namespace espalier::parallel {

enum class Phases : uint8_t {
  both,     ///< all ranks get all sums
  scatter,  ///< rank r gets the sums of slice r; the rest of its array has no meaning afterwards
  gather,   ///< no sum: all ranks get slice r as rank r holds it; any contents of 2 or 4 bytes
};

/// What is done with one array. All ranks give equal descriptions.
struct SliceJob {
  Tensor data;  ///< [n], contiguous, or empty; must stay untouched until done
  Phases phases = Phases::both;
  /// [p + 1], ascending from 0 to n: rank r owns elements [edges[r], edges[r + 1]); read by `start`
  /// only. Empty: even slices.
  std::span<const int64_t> edges = {};
  int number = 0;  ///< tells concurrent jobs of one communicator apart; below kReductionNumbers
  Wire* wire = nullptr;  ///< empty: elements travel as they are
  int64_t first = 0;     ///< number of data[0] in the array that `wire` knows
};
inline constexpr int kReductionNumbers = kTagNumbers / 2;

/// A way to sum an array over the ranks of a communicator. One at a time; reusable.
class Reduction {
 public:
  virtual ~Reduction() = default;

  /// Begins. One that is made for gradients is not asked for `Phases::gather`.
  virtual void start(const SliceJob& job) = 0;
  /// Does what can be done without waiting.
  virtual Progress advance() = 0;
  /// Ranks whose messages are outstanding.
  virtual std::vector<int> missing() const = 0;

  bool progress() { return advance() == Progress::done; }
  /// Blocks; throws PeerLost.
  void wait(Communicator& comm);
};

struct PieceOptions {
  size_t piece_bytes = size_t{256} << 10U;  ///< of elements in one message, at most
  /// Pieces to be summed shrink (to 4 KiB) so that four from each peer fit.
  size_t staging_bytes = size_t{4} << 20U;
};

// For those who make one:

inline constexpr size_t kLine = 64;             ///< pieces and even slices begin at cache lines
inline constexpr size_t kSmallestPiece = 4096;  ///< bytes
/// Those of the job, or of even slices: [ranks + 1].
std::vector<int64_t> edges_of(const SliceJob& job, int ranks);
/// At least `count` elements; contents are lost when it grows.
void reserve(Arena& arena, Buffer& buffer, std::string_view name, DType dtype, int64_t count);
/// Ascending, each once.
std::vector<int> distinct(std::vector<int> ranks);

}  // namespace espalier::parallel
