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
#include <algorithm>
#include <array>
#include <utility>

#include "parallel/flat.h"
#include "parallel/reduction/registry.h"

namespace espalier::parallel {
namespace {

class RingReduction final : public Reduction {
 public:
  RingReduction(Communicator& comm, Arena& arena, const PieceOptions& options)
      : comm_(comm), arena_(arena), options_(options) {
    rounds_[1].slot = 1;
  }

  static constexpr int kRounds = 2;

  void reserve(const SliceJob& job) override;
  void start(const SliceJob& job) override;
  Progress advance() override;
  std::vector<int> missing() const override;

 private:
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

  int slice_sent(int message) const {
    const int turns = comm_.size() - 1;
    return wrap(message < turns ? comm_.rank() - message - 1 : comm_.rank() - (message - turns));
  }
  int slice_received(int message) const { return wrap(slice_sent(message) - 1); }
  int wrap(int rank) const { return (rank % comm_.size() + comm_.size()) % comm_.size(); }

  std::span<std::byte> message(const Round& round, int which, size_t bytes) const {
    return flat_bytes(round.memory.at(static_cast<size_t>(which)).tensor()).first(bytes);
  }
  void begin(Round& round, int64_t index);
  void exchange(Round& round);
  void received(Round& round);

  Communicator& comm_;
  Arena& arena_;
  PieceOptions options_;
  SliceJob job_;  ///< without data: no job in flight
  SlicePieces pieces_;
  int64_t done_ = 0;  ///< rounds
  Buffer sum_;        ///< fp32, of a piece
  std::array<Round, kRounds> rounds_;
};

void RingReduction::reserve(const SliceJob& job) {
  if (comm_.size() == 1 || flat_count(job.data) == 0) {
    return;
  }
  std::vector<int64_t> edges = edges_of(job, comm_.size());
  const auto most =
      static_cast<int64_t>(options_.piece_bytes / kLine * kLine / size_of(job.data.dtype));
  const int64_t piece_elements = std::min(most, longest_slice(edges));
  pieces_ = SlicePieces(job, std::move(edges), piece_elements);
  const auto bytes = static_cast<int64_t>(std::max<size_t>(1, pieces_.longest_message()));
  for (Round& round : rounds_) {
    for (Buffer& memory : round.memory) {
      parallel::reserve(arena_, memory, "ring message", DType::uint8, bytes);
    }
  }
  parallel::reserve(arena_, sum_, "sums of a piece", DType::fp32, piece_elements);
  job.wire->reserve(job.data.dtype, piece_elements);
}

void RingReduction::start(const SliceJob& job) {
  require(!job_.data, "one array at a time", job.data.count());
  require(job.wire != nullptr, "a wire to encode partial sums with");
  if (comm_.size() == 1 || flat_count(job.data) == 0) {
    return;
  }
  reserve(job);
  job_ = job;
  done_ = 0;
  for (Round& round : rounds_) {
    if (round.slot < pieces_.most()) {
      begin(round, round.slot);
    }
  }
}

void RingReduction::begin(Round& round, int64_t index) {
  round.piece = index;
  round.busy = true;
  const bool gather = job_.phases == Phases::gather;
  round.message = gather ? comm_.size() - 1 : 0;
  const SlicePieces::Piece mine = pieces_.at(slice_sent(round.message), index);
  job_.wire->encode(mine.elements, mine.number, message(round, round.leaving, mine.bytes),
                    gather ? mine.elements : Tensor());
  exchange(round);
}

void RingReduction::exchange(Round& round) {
  const Tag tag{2 * job_.number + round.slot, Traffic::allreduce};
  const size_t in = pieces_.at(slice_received(round.message), round.piece).bytes;
  const size_t out = pieces_.at(slice_sent(round.message), round.piece).bytes;
  round.receive = comm_.irecv(wrap(comm_.rank() - 1), tag, message(round, 1 - round.leaving, in));
  round.send = comm_.isend(wrap(comm_.rank() + 1), tag, message(round, round.leaving, out));
}

/// Turns the received message into the next outgoing one.
void RingReduction::received(Round& round) {
  Wire& wire = *job_.wire;
  const int turns = comm_.size() - 1;
  const auto [mine, number, bytes] = pieces_.at(slice_received(round.message), round.piece);
  const std::span<std::byte> in = message(round, 1 - round.leaving, bytes);
  const std::span<std::byte> out = message(round, round.leaving, bytes);
  if (round.message >= turns) {
    wire.decode(in, number, mine);
    round.leaving = 1 - round.leaving;
    return;
  }
  const Tensor sum = flat_part(sum_.tensor(), 0, mine.count());
  wire.decode(in, number, sum);
  wire.add(mine, sum);
  if (round.message + 1 < turns) {
    wire.encode(sum, number, out);
  } else if (job_.phases == Phases::scatter) {
    wire.copy(sum, mine);
  } else {
    wire.encode(sum, number, out, mine);
  }
}

Progress RingReduction::advance() {
  if (!job_.data) {
    return Progress::done;
  }
  const int turns = comm_.size() - 1;
  const int last = job_.phases == Phases::scatter ? turns - 1 : 2 * turns - 1;
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
    if (round.piece + kRounds < pieces_.most()) {  // same pieces, same slot on all ranks
      begin(round, round.piece + kRounds);
    }
  }
  if (done_ == pieces_.most()) {
    job_ = {};
    return Progress::done;
  }
  return moved ? Progress::moved : Progress::stuck;
}

std::vector<int> RingReduction::missing() const {
  std::vector<int> ranks;
  for (const Round& round : rounds_) {
    for (const Request* request : {&round.send, &round.receive}) {
      if (!request->done()) {
        ranks.push_back(request->peer());
      }
    }
  }
  return distinct(std::move(ranks));
}

}  // namespace

extern const ReductionEntry kRing{.name = "ring",
                                  .help = "partial sums around a ring",
                                  .in_rank_order = false,
                                  .make = make_kind<RingReduction>};

}  // namespace espalier::parallel
