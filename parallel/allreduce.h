#pragma once
// Sums of arrays (fp32 or bf16) over all ranks, in place and without blocking; and their two halves.
//
// Rank r owns slice r of the array. *Scatter*: it receives the other p-1 versions of its slice and
// adds all p IN RANK ORDER (bf16: in fp32, rounded once). *Gather*: it sends its slice to all. Each
// rank sends (p-1)/p n elements of the array's own type in each. A sum is computed once, in a fixed
// order: it has the same bits on every transport, wherever the array is cut, in whatever order
// messages arrive. The scatter alone is ZeRO's reduce-scatter, the gather alone its all-gather.
//
// Slices travel in pieces; a piece is summed and sent on while the next ones arrive. Extra memory:
// at most `staging_bytes` (none to gather), whatever n is. Source: Rabenseifner, "Optimization of
// collective reduction operations", ICCS 2004 (the two phases); direct exchange instead of halving
// keeps the order.
#include <deque>
#include <span>
#include <vector>

#include "parallel/communicator.h"
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
};

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
inline constexpr int kReductionNumbers = kTagNumbers / 2;

struct AllReduceOptions {
  size_t piece_bytes = size_t{256} << 10U;  ///< of one message, at most
  /// Pieces to be summed shrink (to 4 KiB) so that four from each peer fit.
  size_t staging_bytes = size_t{4} << 20U;
};

class AllReduce final : public Reduction {
 public:
  AllReduce(Communicator& comm, Arena& arena, const AllReduceOptions& options = {});

  void start(const SliceJob& job) override;
  Progress advance() override;
  std::vector<int> missing() const override;
  using Reduction::wait;
  void wait() { wait(comm_); }

 private:
  /// Messages with one peer; pieces are counted in order.
  struct Peer {
    int rank = 0;
    int64_t pieces = 0;          ///< of the peer's slice
    std::deque<Request> give;    ///< my version of its slice: sent, not yet through
    std::deque<Request> take;    ///< its version of my slice, into staging
    std::deque<Request> spread;  ///< my slice
    std::deque<Request> fetch;   ///< its slice
    int64_t given = 0;           ///< pieces posted in `give`
    int64_t taken = 0;           ///< posted in `take`
    int64_t sent = 0;            ///< posted in `spread`
    int64_t fetched = 0;         ///< posted in `fetch`
  };

  void set_edges(const SliceJob& job);
  void choose_pieces();
  int64_t pieces(int rank) const;
  Tensor piece(int rank, int64_t index) const;
  Tensor staged(size_t peer, int64_t index) const;
  void post_takes(size_t peer);
  void post_gives(Peer& peer);
  void post_spreads(Peer& peer);
  void post_fetches(Peer& peer);
  bool drain(std::deque<Request>& requests);
  bool exchange(Peer& peer);
  bool sum_arrived();
  bool finished() const;

  Communicator& comm_;
  Arena& arena_;
  AllReduceOptions options_;
  Tensor data_;  ///< empty: nothing under way
  Phases phases_ = Phases::both;
  int number_ = 0;
  std::vector<int64_t> edges_;  ///< of the slices, in elements
  int64_t piece_elements_ = 1;
  int64_t my_pieces_ = 0;
  int64_t final_ = 0;           ///< pieces of my slice that hold what the others shall get
  std::vector<Tensor> inputs_;  ///< of one sum, by rank
  // The staging memory goes after the peers, whose open receives point into it.
  Buffer staging_;  ///< bytes [peer][piece modulo window][piece_elements_]
  std::vector<Peer> peers_;
};

}  // namespace espalier::parallel
