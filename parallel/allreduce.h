#pragma once
// Sums of float arrays over all ranks, in place and without blocking.
//
// AllReduce is scatter-reduce + all-gather over point-to-point messages: rank r owns slice r of the
// array, receives the other p-1 versions of it, adds all p IN RANK ORDER and sends the sum to all.
// Each rank sends 2 (p-1)/p n elements in 2 steps. Each sum is computed once, in a fixed order: all
// ranks end with the same bits, on every transport and in whatever order messages arrive.
//
// Slices travel in pieces; a piece is summed and sent on while the next ones arrive. Extra memory:
// at most `staging_bytes`, whatever n is. Source: Rabenseifner, "Optimization of collective
// reduction operations", ICCS 2004 (the split in two phases); direct exchange instead of halving
// keeps the order.
#include <deque>
#include <span>
#include <vector>

#include "parallel/communicator.h"
#include "src/core/arena.h"

namespace espalier::parallel {

/// A way to sum a float array over the ranks of a communicator. One array at a time; reusable.
class Reduction {
 public:
  virtual ~Reduction() = default;

  /// Begins; `data` must stay untouched until done. All ranks start with equal sizes. `number`
  /// tells concurrent reductions of one communicator apart (below kReductionNumbers).
  virtual void start(std::span<float> data, int number) = 0;
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
  /// Pieces shrink (to 4 KiB) so that four from each peer fit.
  size_t staging_bytes = size_t{4} << 20U;
};

class AllReduce final : public Reduction {
 public:
  AllReduce(Communicator& comm, Arena& arena, const AllReduceOptions& options = {});

  void start(std::span<float> data, int number) override;
  Progress advance() override;
  std::vector<int> missing() const override;
  using Reduction::wait;
  void wait() { wait(comm_); }

 private:
  struct Range {
    int64_t begin = 0;
    int64_t count = 0;
  };
  /// Messages with one peer; pieces are counted in order.
  struct Peer {
    int rank = 0;
    int64_t pieces = 0;          ///< of the peer's slice
    std::deque<Request> give;    ///< my version of its slice: sent, not yet through
    std::deque<Request> take;    ///< its version of my slice, into staging
    std::deque<Request> spread;  ///< sums of my slice
    std::deque<Request> fetch;   ///< sums of its slice
    int64_t given = 0;           ///< pieces posted in `give`
    int64_t taken = 0;           ///< posted in `take`
    int64_t fetched = 0;         ///< posted in `fetch`
  };

  Range slice(int rank) const;
  int64_t pieces(int rank) const;
  std::span<float> piece(int rank, int64_t index) const;
  std::span<float> staged(size_t peer, int64_t index) const;
  void choose_pieces();
  void post_takes(size_t peer);
  void post_gives(Peer& peer);
  bool drain(std::deque<Request>& requests);
  bool exchange(Peer& peer);
  bool sum_arrived();
  bool finished() const;

  Communicator& comm_;
  Arena& arena_;
  AllReduceOptions options_;
  std::span<float> data_;  ///< empty: nothing under way
  int number_ = 0;
  int64_t piece_elements_ = 1;
  int64_t my_pieces_ = 0;
  int64_t summed_ = 0;                ///< pieces of my slice
  std::vector<const float*> inputs_;  ///< of one sum, by rank
  // The staging memory goes after the peers, whose open receives point into it.
  Buffer staging_;  ///< [peer][piece modulo window][element]
  std::vector<Peer> peers_;
};

}  // namespace espalier::parallel
