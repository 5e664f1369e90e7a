#pragma once
// Sums of arrays in GPU memory over the ranks of a link: calls enqueue work, which runs in the
// order of the link's queue. Two orders of summation:
//
//   by_rank   scatter-reduce-allgather (reduction/sra.h) over grouped messages: a rank adds the
//             versions of its slice in rank order, in fp32, rounded once. The bits, and with a Wire
//             also the bytes, equal those of ranks on the CPU. Sends 2 (p-1)/p n.
//   by_nccl   NCCL's own sums, in an order that NCCL chooses and all ranks share. Only gathers use
//             codes.
//
// Memory: the other versions of this rank's slice; with a Wire also codes of all slices, codes of
// those versions, and fp32 sums of the slice. It grows with the largest array so far; the host
// waits only when it grows.
#include "parallel/reduction/reduction.h"
#include "parallel/transport/device/link.h"

namespace espalier::parallel {

class DeviceReduction {
 public:
  enum class Order : uint8_t { by_rank, by_nccl };

  /// Both must outlive it. `pieces`: the options of the CPU reduction with the same bytes.
  DeviceReduction(DeviceLink& link, const kernels::Kernels& kernels, Order order,
                  const PieceOptions& pieces = {})
      : link_(link), kernels_(kernels), order_(order), options_(pieces) {}

  /// Runs after all work enqueued on the link's compute stream so far. A wire's stream is the
  /// link's. `doing`: for PeerLost, as in "summing gradients".
  void run(const SliceJob& job, std::string_view doing);

 private:
  void sum_by_nccl();
  void sum_by_rank();
  void gather();
  void sum_coded();
  void gather_coded();
  Tensor slice(int rank) const;

  /// A piece of an encoded slice.
  struct Piece : SlicePieces::Piece {
    size_t at = 0;  ///< bytes from the message's begin
  };
  std::vector<Piece> cut(int rank) const;
  size_t message_bytes(int rank) const;
  std::vector<std::span<std::byte>> staged(Buffer& buffer, std::string_view name,
                                           const std::vector<size_t>& bytes);
  std::vector<size_t> bytes_of_slices() const;

  DeviceLink& link_;
  const kernels::Kernels& kernels_;
  Order order_;
  PieceOptions options_;
  SliceJob job_;  ///< the current one
  std::string_view doing_;
  std::vector<int64_t> edges_;
  SlicePieces pieces_;  ///< of coded slices
  Buffer staging_;      ///< versions of this rank's slice: elements, or codes
  Buffer messages_;     ///< codes of the other slices
  Buffer sums_, sent_;  ///< of this rank's slice: fp32, and its codes
};

/// The order of `parallel.reduction` between GPUs: "auto" is by rank.
DeviceReduction::Order order_of(std::string_view reduction);

}  // namespace espalier::parallel
