#pragma once
// Messages of a channel in the memory of GPUs, by NCCL: envelopes go through the communicator, and
// say that a message is under way; contents by a link of the two ranks, with a queue of its own,
// in the order of the envelopes.
//
// Neither end's queue ever waits for something that the other's host has yet to decide, but for one
// send: it is asked for when its message is computed and the send before it is done, so it runs at
// once, and waits in its kernel until the receiver has a buffer and has seen the envelope. A receive
// is asked for after its send. What computes waits for receives alone, so for no more than a
// transfer, and a rank that waits for a GPU goes on answering (lookout.h).
#include "parallel/pipeline/carrier.h"
#include "parallel/transport/device/nccl_link.h"

namespace espalier::parallel {

class NcclCarrier final : public Carrier {
 public:
  /// Collective over the two ranks: it moves a byte, with which NCCL opens the connection. Where a
  /// rank has several channels, they are made in an order that all ranks share.
  NcclCarrier(Communicator& comm, Stream& compute, const ChannelShape& shape);

  void expect(size_t slot) override { envelopes_.expect(slot); }
  bool came(size_t slot) override;
  bool answers() const override { return true; }
  bool clear() override;
  void leave(size_t slot, const Envelope& envelope) override;
  bool left(size_t slot) override;

 private:
  static constexpr int kSender = 0, kReceiver = 1;  // ranks of the link

  Envelope envelope(size_t slot) const override { return envelopes_[slot]; }
  void let_in(size_t slot) override;
  void move(std::span<std::byte> data);

  Stream& compute_;
  NcclLink link_;
  Envelopes envelopes_;
  std::vector<Mark> moved_;  ///< [slots] of the link's queue
  Mark last_ = 0;
};

}  // namespace espalier::parallel
