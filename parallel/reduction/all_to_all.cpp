#include "parallel/reduction/all_to_all.h"

#include <algorithm>
#include <utility>

#include "parallel/reduction/flat.h"

namespace espalier::parallel {

AllToAllReduction::AllToAllReduction(Communicator& comm, Arena& arena, const PieceOptions& options)
    : comm_(comm), arena_(arena), options_(options), halves_(comm, arena, options) {}

Tensor AllToAllReduction::piece(int64_t index) const {
  const int64_t begin = index * piece_elements_;
  return flat_part(job_.data, begin, std::min(piece_elements_, job_.data.count() - begin));
}

/// The code of a rank's piece.
std::span<std::byte> AllToAllReduction::message(int64_t index, int rank) const {
  const auto place = static_cast<size_t>(index % kWindow * comm_.size() + rank);
  const size_t bytes = job_.wire->bytes(job_.first + index * piece_elements_, piece(index).count());
  return flat_bytes(staging_.tensor()).subspan(place * slot_bytes_, bytes);
}

void AllToAllReduction::start(const SliceJob& job) {
  require(!job_.data && job.wire != nullptr, "one array at a time, and a wire for its codes");
  half_ = job.phases != Phases::both;
  if (half_) {
    return halves_.start(job);
  }
  if (comm_.size() == 1 || flat_count(job.data) == 0) {
    return;
  }
  job_ = job;
  const int64_t n = job_.data.count();
  const size_t shares = static_cast<size_t>(comm_.size()) * kWindow;
  const size_t bytes =
      std::max(kSmallestPiece, std::min(options_.piece_bytes, options_.staging_bytes / shares));
  piece_elements_ =
      std::min(n, static_cast<int64_t>(bytes / kLine * kLine / size_of(job_.data.dtype)));
  pieces_ = (n + piece_elements_ - 1) / piece_elements_;
  slot_bytes_ = 1;
  for (int64_t index = 0; index < pieces_; ++index) {
    slot_bytes_ = std::max(
        slot_bytes_, job_.wire->bytes(job_.first + index * piece_elements_, piece(index).count()));
  }
  reserve(arena_, staging_, "all-to-all staging", DType::uint8,
          std::min(kWindow, pieces_) * comm_.size() * static_cast<int64_t>(slot_bytes_));
  reserve(arena_, sum_, "sums of a piece", DType::fp32, piece_elements_);
  posted_ = 0;
  summed_ = 0;
  post();
}

bool AllToAllReduction::through(std::vector<Request>& requests) {
  std::erase_if(requests, [this](Request& request) { return comm_.test(request); });
  return requests.empty();
}

bool AllToAllReduction::post() {
  bool moved = false;
  for (; posted_ < pieces_ && posted_ < summed_ + kWindow; ++posted_) {
    Slot& free = slot(posted_);
    if (!through(free.sends)) {
      break;
    }
    const std::span<std::byte> mine = message(posted_, comm_.rank());
    job_.wire->encode(piece(posted_), job_.first + posted_ * piece_elements_, mine);
    const Tag tag{2 * job_.number, Traffic::allreduce};
    for (int step = 1; step < comm_.size(); ++step) {
      const int peer = (comm_.rank() + step) % comm_.size();
      free.receives.push_back(comm_.irecv(peer, tag, message(posted_, peer)));
      free.sends.push_back(comm_.isend(peer, tag, mine));
    }
    moved = true;
  }
  return moved;
}

bool AllToAllReduction::sum() {
  bool moved = false;
  for (; summed_ < posted_ && through(slot(summed_).receives); ++summed_) {
    const Tensor mine = piece(summed_);
    const int64_t number = job_.first + summed_ * piece_elements_;
    const Tensor sum = flat_part(sum_.tensor(), 0, mine.count());
    for (int rank = 0; rank < comm_.size(); ++rank) {
      const std::span<const std::byte> code = message(summed_, rank);
      rank == 0 ? job_.wire->decode(code, number, sum) : job_.wire->add(code, number, sum);
    }
    job_.wire->copy(sum, mine);
    moved = true;
  }
  return moved;
}

Progress AllToAllReduction::advance() {
  if (half_) {
    return halves_.advance();
  }
  if (!job_.data) {
    return Progress::done;
  }
  bool moved = post();
  moved |= sum();
  if (summed_ < pieces_) {
    return moved ? Progress::moved : Progress::stuck;
  }
  for (Slot& one : slots_) {
    if (!through(one.sends)) {
      return moved ? Progress::moved : Progress::stuck;
    }
  }
  job_ = {};
  return Progress::done;
}

std::vector<int> AllToAllReduction::missing() const {
  if (half_) {
    return halves_.missing();
  }
  std::vector<int> ranks;
  for (const Slot& one : slots_) {
    for (const auto* requests : {&one.sends, &one.receives}) {
      for (const Request& request : *requests) {
        if (!request.done()) {
          ranks.push_back(request.peer());
        }
      }
    }
  }
  return distinct(std::move(ranks));
}

}  // namespace espalier::parallel
