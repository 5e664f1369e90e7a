#pragma once
// Messages of a channel in device memory, by NCCL. Envelopes go through the communicator and
// announce a message; contents go by a link of the two ranks, with a queue of its own, in the order
// of the envelopes.
//
// A queue waits only for work that is already enqueued on the other end, with one exception: a send
// is enqueued when its message is computed and the send before it is complete, so it runs at once,
// and its kernel waits until the receiver has a buffer and has seen the envelope. A receive is
// enqueued after its send. The compute stream waits for receives only, so at most for a transfer,
// and a rank that waits for its GPU still progresses messages (wait_hook.h).
#include "parallel/pipeline/carrier.h"
#include "parallel/transport/device/nccl_link.h"

namespace espalier::parallel {

class NcclCarrier final : public Carrier {
 public:
  /// Collective over the two ranks: it moves a byte, with which NCCL opens the connection. A rank
  /// with several channels must create them in the order that all ranks use.
  NcclCarrier(Communicator& comm, Stream& compute, const ChannelShape& shape);

  void post(size_t slot) override { envelopes_.post(slot); }
  bool arrived(size_t slot) override;
  bool needs_polling() const override { return true; }
  bool can_send() override;
  void send(size_t slot, const Envelope& envelope) override;
  bool sent(size_t slot) override;

 private:
  static constexpr int kSender = 0, kReceiver = 1;  // ranks of the link

  Envelope envelope(size_t slot) const override { return envelopes_[slot]; }
  void follow_transfer(size_t slot) override;
  void move(std::span<std::byte> data);

  Stream& compute_;
  NcclLink link_;
  Envelopes envelopes_;
  std::vector<Mark> moved_;  ///< [slots] of the link's queue
  Mark last_ = 0;
};

}  // namespace espalier::parallel
