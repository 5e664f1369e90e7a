#include "parallel/reduction/ring.h"

#include <algorithm>
#include <utility>

#include "parallel/reduction/flat.h"

namespace espalier::parallel {

RingReduction::RingReduction(Communicator& comm, Arena& arena, const PieceOptions& options)
    : comm_(comm), arena_(arena), options_(options) {
  rounds_[1].slot = 1;
}

int RingReduction::slice_sent(int message) const {
  const int turns = comm_.size() - 1;
  return wrap(message < turns ? comm_.rank() - message - 1 : comm_.rank() - (message - turns));
}

int RingReduction::slice_received(int message) const {
  const int turns = comm_.size() - 1;
  return wrap(message < turns ? comm_.rank() - message - 2 : comm_.rank() - (message - turns) - 1);
}

Tensor RingReduction::piece(int slice, int64_t index) const {
  const int64_t end = edges_[slice + 1];
  const int64_t begin = std::min(end, edges_[slice] + index * piece_elements_);
  return flat_part(data_, begin, std::min(piece_elements_, end - begin));
}

/// The piece's first element, in the wire's numbering.
int64_t RingReduction::number_of(int slice, int64_t index) const {
  return first_ + std::min(edges_[slice + 1], edges_[slice] + index * piece_elements_);
}

std::span<std::byte> RingReduction::message(Round& round, int which, int slice) const {
  const size_t bytes =
      wire_->bytes(number_of(slice, round.piece), piece(slice, round.piece).count());
  return flat_bytes(round.memory.at(static_cast<size_t>(which)).tensor()).first(bytes);
}

void RingReduction::start(const SliceJob& job) {
  require(!data_, "one array at a time", job.data.count());
  require(job.wire != nullptr, "a wire to encode partial sums with");
  if (comm_.size() == 1 || flat_count(job.data) == 0) {
    return;
  }
  data_ = job.data;
  phases_ = job.phases;
  number_ = job.number;
  wire_ = job.wire;
  first_ = job.first;
  edges_ = edges_of(job, comm_.size());
  const size_t element = size_of(data_.dtype);
  piece_elements_ = static_cast<int64_t>(options_.piece_bytes / kLine * kLine / element);
  int64_t longest = 0;
  for (size_t r = 0; r + 1 < edges_.size(); ++r) {
    longest = std::max(longest, edges_[r + 1] - edges_[r]);
  }
  piece_elements_ = std::min(piece_elements_, longest);
  pieces_ = (longest + piece_elements_ - 1) / piece_elements_;
  size_t bytes = 1;
  for (int slice = 0; slice < comm_.size(); ++slice) {
    for (int64_t index = 0; index < pieces_; ++index) {
      bytes = std::max(bytes, wire_->bytes(number_of(slice, index), piece(slice, index).count()));
    }
  }
  for (Round& round : rounds_) {
    for (Buffer& memory : round.memory) {
      reserve(arena_, memory, "ring message", DType::uint8, static_cast<int64_t>(bytes));
    }
  }
  reserve(arena_, sum_, "sums of a piece", DType::fp32, piece_elements_);
  done_ = 0;
  for (Round& round : rounds_) {
    if (round.slot < pieces_) {
      begin(round, round.slot);
    }
  }
}

void RingReduction::begin(Round& round, int64_t index) {
  round.piece = index;
  round.busy = true;
  round.message = phases_ == Phases::gather ? comm_.size() - 1 : 0;
  const int slice = slice_sent(round.message);
  const Tensor mine = piece(slice, index);
  const std::span<std::byte> out = message(round, round.leaving, slice);
  if (phases_ == Phases::gather) {
    wire_->encode(mine, number_of(slice, index), out, mine);
  } else {
    wire_->encode(mine, number_of(slice, index), out);
  }
  exchange(round);
}

void RingReduction::exchange(Round& round) {
  const Tag tag{2 * number_ + round.slot, Traffic::allreduce};
  round.receive = comm_.irecv(wrap(comm_.rank() - 1), tag,
                              message(round, 1 - round.leaving, slice_received(round.message)));
  round.send = comm_.isend(wrap(comm_.rank() + 1), tag,
                           message(round, round.leaving, slice_sent(round.message)));
}

/// Turns the received message into the next outgoing one.
void RingReduction::received(Round& round) {
  const int turns = comm_.size() - 1;
  const int slice = slice_received(round.message);
  const int64_t number = number_of(slice, round.piece);
  const Tensor mine = piece(slice, round.piece);
  const std::span<std::byte> in = message(round, 1 - round.leaving, slice);
  const std::span<std::byte> out = message(round, round.leaving, slice);
  if (round.message >= turns) {
    wire_->decode(in, number, mine);
    round.leaving = 1 - round.leaving;
    return;
  }
  const Tensor sum = flat_part(sum_.tensor(), 0, mine.count());
  wire_->decode(in, number, sum);
  wire_->add(mine, sum);
  if (round.message + 1 < turns) {
    wire_->encode(sum, number, out);
  } else if (phases_ == Phases::scatter) {
    wire_->copy(sum, mine);
  } else {
    wire_->encode(sum, number, out, mine);
  }
}

Progress RingReduction::advance() {
  if (!data_) {
    return Progress::done;
  }
  const int turns = comm_.size() - 1;
  const int last = phases_ == Phases::scatter ? turns - 1 : 2 * turns - 1;
  bool moved = false;
  for (Round& round : rounds_) {
    if (!round.busy || !comm_.test(round.send) || !comm_.test(round.receive)) {
      continue;
    }
    moved = true;
    received(round);
    if (round.message++ < last) {
      exchange(round);
      continue;
    }
    round.busy = false;
    ++done_;
    if (round.piece + kRounds < pieces_) {  // same pieces, same slot on all ranks
      begin(round, round.piece + kRounds);
    }
  }
  if (done_ == pieces_) {
    data_ = {};
    return Progress::done;
  }
  return moved ? Progress::moved : Progress::stuck;
}

std::vector<int> RingReduction::missing() const {
  std::vector<int> ranks;
  for (const Round& round : rounds_) {
    if (!round.send.done()) {
      ranks.push_back(wrap(comm_.rank() + 1));
    }
    if (!round.receive.done()) {
      ranks.push_back(wrap(comm_.rank() - 1));
    }
  }
  return distinct(std::move(ranks));
}

}  // namespace espalier::parallel
