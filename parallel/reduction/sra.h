#pragma once
// Scatter-reduce-allgather ("sra"): the sum of an array by direct messages, in two steps.
//
// Rank r owns slice r of the array. *Scatter*: it receives the other p-1 versions of its slice and
// adds all p IN RANK ORDER (in fp32, rounded once). *Gather*: it sends its slice to all. Each rank
// sends (p-1)/p n elements in each. A sum is computed once, in a fixed order: it has the same bits
// on every transport, wherever the array is cut, in whatever order messages arrive. The scatter
// alone is ZeRO's reduce-scatter, the gather alone its all-gather.
//
// With a Wire each contribution is encoded once, and so is the sum, which its owner replaces by
// what the others decode; the owner's own contribution is exact. Without one, nothing is copied but
// what is to be summed.
//
// Slices travel in pieces; a piece is summed and sent on while the next ones arrive. Extra memory:
// at most `staging_bytes` (none to gather without a Wire; with one half as much again for fp32
// values), whatever n is. Source: Rabenseifner, "Optimization of collective reduction operations",
// ICCS 2004 (the two phases); direct exchange instead of halving keeps the order. With codes:
// Markov and others, "CGX", Middleware 2022.
#include <deque>
#include <span>
#include <vector>

#include "parallel/reduction/reduction.h"

namespace espalier::parallel {

/// Elements of a piece of slices with these edges: equal wherever one array is summed, since codes
/// begin anew in each piece.
int64_t sra_piece(std::span<const int64_t> edges, DType dtype, Phases phases, bool coded,
                  const PieceOptions& options);

class SraReduction final : public Reduction {
 public:
  SraReduction(Communicator& comm, Arena& arena, const PieceOptions& options = {});

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
  /// What staging holds of a peer; a gather needs `fetch` alone. `spread` is one for all.
  enum class Lane : uint8_t { take, give, fetch, spread };

  void choose_pieces();
  void allocate_staging();
  int64_t pieces(int rank) const;
  Tensor piece(int rank, int64_t index) const;
  int64_t number_of(int rank, int64_t index) const;
  std::span<std::byte> room(Lane lane, size_t peer, int rank, int64_t index) const;
  void post_takes(size_t peer);
  void post_gives(size_t peer);
  void post_spreads(Peer& peer);
  void post_fetches(size_t peer);
  bool drain(std::deque<Request>& requests);
  bool drain_fetches(size_t peer);
  bool exchange(size_t peer);
  bool spread_has_room() const;
  bool sum_arrived();
  void sum_plain(const Tensor& mine);
  void sum_coded(const Tensor& mine);
  bool finished() const;

  Communicator& comm_;
  Arena& arena_;
  PieceOptions options_;
  Tensor data_;  ///< empty: nothing under way
  Phases phases_ = Phases::both;
  int number_ = 0;
  Wire* wire_ = nullptr;
  int64_t first_ = 0;           ///< of data_, as the wire counts
  std::vector<int64_t> edges_;  ///< of the slices, in elements
  int64_t piece_elements_ = 1;
  size_t window_ = 1;      ///< slots of a stream with one peer
  size_t lanes_ = 1;       ///< of a peer in staging, with a wire
  size_t slot_bytes_ = 0;  ///< of a message in staging
  int64_t my_pieces_ = 0;
  int64_t final_ = 0;           ///< pieces of my slice that hold what the others shall get
  std::vector<Tensor> inputs_;  ///< of one sum, by rank
  Buffer sum_;                  ///< fp32 [piece_elements_], of coded pieces
  // The staging memory goes after the peers, whose open receives point into it.
  Buffer staging_;  ///< bytes [lane][peer][piece modulo window][slot_bytes_]
  std::vector<Peer> peers_;
};

}  // namespace espalier::parallel
