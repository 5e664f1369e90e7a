#pragma once
// Scatter-reduce-allgather ("sra"): the sum of an array by direct messages, in two steps.
//
// Rank r owns slice r of the array. Each rank sends (p-1)/p n elements in each step:
// - *Scatter*: rank r receives the other p-1 versions of its slice and adds all p IN RANK ORDER (in
//   fp32, rounded once).
// - *Gather*: rank r sends its slice to all ranks.
//
// A sum is computed once, in a fixed order. So it has the same bits on every transport, for every
// cut of the array and for every order of arrival. The scatter alone is ZeRO's reduce-scatter, the
// gather alone its all-gather.
//
// With a Wire each contribution is encoded once, and so is the sum. The owner replaces its sum by
// the values that the others decode; the owner's own contribution is exact. Without a Wire only the
// data to be summed is copied.
//
// Slices are sent in pieces; a piece is summed and sent on while the next ones arrive. Extra
// memory: at most `staging_bytes`, whatever n is. A gather without a Wire needs none; a Wire adds
// half as much again for fp32 values. Source: Rabenseifner, "Optimization of collective reduction
// operations", ICCS 2004 (the two phases); direct exchange instead of halving keeps the order. With
// codes: Markov and others, "CGX", Middleware 2022.
#include <deque>
#include <span>
#include <vector>

#include "parallel/reduction/reduction.h"

namespace espalier::parallel {

/// Elements of a piece of slices with these edges. Equal for all sums of one array, because each
/// piece is encoded separately.
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
    std::deque<Request> give;    ///< this rank's version of the peer's slice: sent, not yet
                                 ///< complete
    std::deque<Request> take;    ///< the peer's version of this rank's slice, into staging
    std::deque<Request> spread;  ///< this rank's slice
    std::deque<Request> fetch;   ///< the peer's slice
    int64_t given = 0;           ///< pieces posted in `give`
    int64_t taken = 0;           ///< posted in `take`
    int64_t sent = 0;            ///< posted in `spread`
    int64_t fetched = 0;         ///< posted in `fetch`
  };
  /// Staging areas of a peer; a gather needs only `fetch`. All peers share one `spread`.
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
  Tensor data_;  ///< empty: no job in flight
  Phases phases_ = Phases::both;
  int number_ = 0;
  Wire* wire_ = nullptr;
  int64_t first_ = 0;           ///< of data_, in the wire's numbering
  std::vector<int64_t> edges_;  ///< of the slices, in elements
  int64_t piece_elements_ = 1;
  size_t window_ = 1;      ///< slots of a stream with one peer
  size_t lanes_ = 1;       ///< of a peer in staging, with a wire
  size_t slot_bytes_ = 0;  ///< of a message in staging
  int64_t my_pieces_ = 0;
  int64_t final_ = 0;           ///< pieces of this rank's slice that hold their final values
  std::vector<Tensor> inputs_;  ///< of one sum, by rank
  Buffer sum_;                  ///< fp32 [piece_elements_], of coded pieces
  // Declared after the peers, whose posted receives point into it.
  Buffer staging_;  ///< bytes [lane][peer][piece modulo window][slot_bytes_]
  std::vector<Peer> peers_;
};

}  // namespace espalier::parallel
