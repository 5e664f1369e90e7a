#pragma once
// Small collectives over any communicator, built from its messages. All ranks call them in the same
// order. Sizes from 0 bytes to beyond 2 GiB. p ranks, n bytes a rank (docs/collectives.md):
//
//   barrier            1 step          p-1 empty messages a rank; the timeout names all late ranks
//   broadcast          ⌈log2 p⌉ steps  n bytes to each rank (binomial tree)
//   all_gather         1 step          (p-1) n bytes sent a rank
//   gather             2 steps         n + 8 bytes sent a rank, to rank 0
//   gather_slices      1 step          n bytes, a rank's part, sent to rank 0, or (p-1) n to all
//   all_reduce_integers  2 steps       2 (p-1)/p n bytes sent a rank
//   all_reduce_small   1 step          all_gather, then a sum in rank order: same bits everywhere
#include <span>
#include <vector>

#include "parallel/partition.h"
#include "parallel/transport/communicator.h"

namespace espalier::parallel {

void barrier(Communicator& comm);

/// Every rank receives root's bytes. `data` has the same size everywhere.
void broadcast(Communicator& comm, int root, std::span<std::byte> data);

/// `all` holds size() blocks of mine.size() bytes, in rank order.
void all_gather(Communicator& comm, std::span<const std::byte> mine, std::span<std::byte> all);

/// Rank 0 gets one vector a rank, of any size each; other ranks get an empty list.
std::vector<std::vector<std::byte>> gather(Communicator& comm, std::span<const std::byte> mine);

/// An array of bytes; every rank holds a range of it.
struct SliceGather {
  std::span<const Range> ranges;    ///< of each rank in the whole, in bytes; equal on all ranks
  std::span<const std::byte> mine;  ///< this rank's range: in its place in `whole`, or elsewhere
  std::span<std::byte> whole;       ///< empty on ranks that receive nothing
  bool everywhere = true;           ///< false: only rank 0 receives
};
/// For sharded state, with ranges that all ranks know: fills `whole` with all ranges, on all ranks
/// or on rank 0. Bytes outside every range are unchanged.
void gather_slices(Communicator& comm, const SliceGather& slices);

/// Sums integers over all ranks, in place: exact, so in any order. 16 (p - 1) / p bytes sent for
/// each, and at most kIntegerStaging bytes of memory.
void all_reduce_integers(Communicator& comm, std::span<int64_t> values);
inline constexpr size_t kIntegerStaging = size_t{4} << 20U;

enum class Combine : uint8_t { sum, max };
/// In place, for a few numbers (norms, losses, counters). Both operations propagate NaN.
void all_reduce_small(Communicator& comm, std::span<double> values, Combine combine);

/// Result of `Communicator::split`, for transports that only have messages.
struct SplitPart {
  Membership members;
  int context = 0;  ///< number of the new communicator in its world
};
/// Collective. `reserve(n)` returns the first of n unused contexts; rank 0 calls it.
SplitPart split_by_messages(Communicator& comm, int color, int key,
                            const std::function<int(int)>& reserve);

}  // namespace espalier::parallel
