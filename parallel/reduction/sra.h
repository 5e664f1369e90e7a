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
// memory for any n: at most `staging_bytes`, or 16 KiB (p - 1) if that is more. A gather without a
// Wire needs none; a Wire adds fp32 values of up to half of it. Source: Rabenseifner, "Optimization
// of collective reduction operations", ICCS 2004 (the two phases); direct exchange instead of
// halving keeps the order. With codes: Markov and others, "CGX", Middleware 2022.
#include <deque>
#include <memory>
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

  void reserve(const SliceJob& job) override;
  void start(const SliceJob& job) override;
  Progress advance() override;
  std::vector<int> missing() const override;
  using Reduction::wait;
  void wait() { wait(comm_); }

 private:
  /// Messages with one peer in one direction, a piece each, in order.
  struct Messages {
    std::deque<Request> open;  ///< posted, not yet complete (or summed)
    int64_t posted = 0;
    int64_t total = 0;

    bool can_post() const;
    int64_t complete() const { return posted - std::ssize(open); }
    bool done() const { return posted == total && open.empty(); }
  };
  struct Peer {
    int rank = 0;
    Messages scatter_out;  ///< this rank's version of the peer's slice
    Messages scatter_in;   ///< the peer's version of this rank's slice, into staging
    Messages gather_out;   ///< this rank's slice
    Messages gather_in;    ///< the peer's slice
  };
  /// Staging areas of a peer; a gather needs only `gather_in`. All peers share one `gather_out`.
  enum class Lane : uint8_t { scatter_in, scatter_out, gather_in, gather_out };

  std::span<std::byte> staged(Lane lane, size_t peer, int64_t index, size_t bytes) const;
  void post_scatter_in(size_t peer);
  void post_scatter_out(size_t peer);
  void post_gather_out(Peer& peer);
  void post_gather_in(size_t peer);
  bool drain(std::deque<Request>& requests);
  bool drain_gather_in(size_t peer);
  bool exchange(size_t peer);
  bool can_stage_sum() const;
  bool sum_arrived();
  void sum_plain(const Tensor& mine);
  void sum_coded(const SlicePieces::Piece& mine);
  bool finished() const;

  Communicator& comm_;
  Arena& arena_;
  PieceOptions options_;
  SliceJob job_;          ///< without data: no job in flight
  Wire* wire_ = nullptr;  ///< empty: elements are sent plain
  SlicePieces pieces_;
  size_t window_ = 1;      ///< slots of a stream with one peer
  size_t lanes_ = 1;       ///< of a peer in staging, with a wire
  size_t slot_bytes_ = 0;  ///< of a message in staging
  int64_t my_pieces_ = 0;
  int64_t final_ = 0;           ///< pieces of this rank's slice that hold their final values
  std::vector<Tensor> inputs_;  ///< of one sum, by rank
  Buffer sum_;                  ///< fp32, of a coded piece
  Buffer staging_;              ///< bytes [lane][peer][piece modulo window][slot_bytes_]
  std::vector<Peer> peers_;     ///< destroyed first: posted receives point into staging_
};

/// A reduction whose halves are those of sra, and whose whole sums are those of `whole`.
std::unique_ptr<Reduction> with_sra_halves(Communicator& comm, Arena& arena,
                                           const PieceOptions& options,
                                           std::unique_ptr<Reduction> whole);

}  // namespace espalier::parallel
