#pragma once
// The sum of an array by direct exchange: every rank sends its whole array to every other rank.
//
// Each rank encodes its array once and adds all p codes in rank order, its own included. So each
// contribution loses precision once, the sum loses none, and all ranks hold the same bits. It sends
// (p-1) n elements: cheap only for two ranks and for small arrays. The halves of a sum (scatter,
// gather), pieces and memory are those of sra.h. Source: Dettmers, ICLR 2016, section 3;
// clusterNet.
#include <array>

#include "parallel/reduction/sra.h"

namespace espalier::parallel {

class AllToAllReduction final : public Reduction {
 public:
  AllToAllReduction(Communicator& comm, Arena& arena, const PieceOptions& options = {});

  /// Requires a wire.
  void start(const SliceJob& job) override;
  Progress advance() override;
  std::vector<int> missing() const override;

 private:
  static constexpr int64_t kWindow = 4;
  /// One piece of the array.
  struct Slot {
    std::vector<Request> sends, receives;  ///< by peer
  };

  Tensor piece(int64_t index) const;
  std::span<std::byte> message(int64_t index, int rank) const;
  bool post();
  bool sum();
  Slot& slot(int64_t index) { return slots_.at(static_cast<size_t>(index % kWindow)); }
  bool through(std::vector<Request>& requests);

  Communicator& comm_;
  Arena& arena_;
  PieceOptions options_;
  SraReduction halves_;
  bool half_ = false;  ///< the job is a scatter or a gather, which `halves_` runs
  SliceJob job_;       ///< without data: no job in flight
  int64_t piece_elements_ = 1;
  size_t slot_bytes_ = 0;
  int64_t pieces_ = 0;
  int64_t posted_ = 0;
  int64_t summed_ = 0;
  Buffer sum_;      ///< fp32 [piece_elements_]
  Buffer staging_;  ///< bytes [piece modulo window][rank][slot_bytes_]
  std::array<Slot, kWindow> slots_;
};

}  // namespace espalier::parallel
