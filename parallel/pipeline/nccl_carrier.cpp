#include "parallel/pipeline/nccl_carrier.h"

namespace espalier::parallel {
namespace {

std::vector<int> ends_of(const Communicator& comm, const ChannelShape& shape) {
  return shape.sends ? std::vector{comm.rank(), shape.peer} : std::vector{shape.peer, comm.rank()};
}

}  // namespace

NcclCarrier::NcclCarrier(Communicator& comm, Stream& compute, const ChannelShape& shape)
    : Carrier(comm, compute.arena(), shape),
      compute_(compute),
      link_(comm, compute, ends_of(comm, shape), Traffic::point_to_point),
      envelopes_(comm, shape),
      moved_(slots()) {
  link_.follow_compute();  // after the kernels that zero new memory
  move(content(0).first(1));
  moved_[0] = last_;
}

/// Moves data from the sender's memory to the receiver's.
void NcclCarrier::move(std::span<std::byte> data) {
  link_.group(shape().sends ? "sending a message to another stage"
                            : "receiving a message from another stage",
              [&] { shape().sends ? link_.send(kReceiver, data) : link_.receive(kSender, data); });
  last_ = link_.stream().mark();
}

bool NcclCarrier::arrived(size_t slot) {
  link_.poll();
  if (!envelopes_.done(slot)) {
    return false;
  }
  move(content(slot));
  moved_[slot] = last_;
  return true;
}

void NcclCarrier::follow_transfer(size_t slot) { compute_.follow(link_.stream(), moved_[slot]); }

bool NcclCarrier::can_send() {
  link_.poll();
  return link_.stream().passed(last_);
}

void NcclCarrier::send(size_t slot, const Envelope& envelope) {
  move(content(slot));
  moved_[slot] = last_;
  envelopes_.send(slot, envelope);
}

bool NcclCarrier::sent(size_t slot) {
  link_.poll();
  return envelopes_.done(slot) && link_.stream().passed(moved_[slot]);
}

}  // namespace espalier::parallel
