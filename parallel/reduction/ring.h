#pragma once
// The sum of an array around a ring of ranks: rank r sends to r + 1 and receives from r - 1 only.
//
// Slice r starts at rank r + 1 and makes p-1 hops; each rank adds its version, and rank r holds the
// complete sum. The sums then make p-1 hops unchanged. Every rank sends 2 (p-1)/p n elements, as in
// sra.h, but to one neighbour instead of p-1 ranks. Each hop encodes a partial sum anew: with a
// lossy code the error grows with p. Without a code each hop rounds sums to the array's type. The
// order of the sum depends on the slice, so the bits differ from those of sra.h; they are the same
// on all ranks.
//
// A round moves one piece of every slice. Two rounds are in flight, so that one is encoded while
// the other is sent. Memory: two messages and one piece of fp32 values a round. Source: Patarasuk
// and Yuan, JPDC 2009; encoded partial sums: CGX, Middleware 2022.
#include <array>

#include "parallel/reduction/reduction.h"

namespace espalier::parallel {

class RingReduction final : public Reduction {
 public:
  RingReduction(Communicator& comm, Arena& arena, const PieceOptions& options = {});

  /// Requires a wire.
  void start(const SliceJob& job) override;
  Progress advance() override;
  std::vector<int> missing() const override;

 private:
  static constexpr int kRounds = 2;
  /// One piece of each slice on its way around the ring.
  struct Round {
    Request send, receive;
    int64_t piece = 0;
    int message = 0;  ///< in flight; 0 … 2 (p - 1) - 1
    bool busy = false;
    int slot = 0;
    std::array<Buffer, 2> memory{};  ///< of the outgoing message and of the incoming one
    int leaving = 0;                 ///< index of the outgoing one
  };

  int slice_sent(int message) const;
  int slice_received(int message) const;
  Tensor piece(int slice, int64_t index) const;
  int64_t number_of(int slice, int64_t index) const;
  std::span<std::byte> message(Round& round, int which, int slice) const;
  void begin(Round& round, int64_t index);
  void exchange(Round& round);
  void received(Round& round);
  int wrap(int rank) const { return (rank % comm_.size() + comm_.size()) % comm_.size(); }

  Communicator& comm_;
  Arena& arena_;
  PieceOptions options_;
  Tensor data_;  ///< empty: no job in flight
  Phases phases_ = Phases::both;
  int number_ = 0;
  Wire* wire_ = nullptr;
  int64_t first_ = 0;
  std::vector<int64_t> edges_;
  int64_t piece_elements_ = 1;
  int64_t pieces_ = 0;  ///< of the longest slice
  int64_t done_ = 0;    ///< rounds
  Buffer sum_;          ///< fp32 [piece_elements_]
  std::array<Round, kRounds> rounds_;
};

}  // namespace espalier::parallel
