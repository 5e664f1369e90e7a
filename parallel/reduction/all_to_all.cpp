// The sum of an array by direct exchange: every rank sends its whole array to every other rank.
//
// Each rank encodes its array once and adds all p codes in rank order, its own included. So each
// contribution loses precision once, the sum loses none, and all ranks hold the same bits. It sends
// (p-1) n elements: cheap only for two ranks and for small arrays. Pieces and memory are those of
// sra.h. Source: Dettmers, ICLR 2016, section 3; clusterNet.
#include <algorithm>
#include <array>
#include <utility>

#include "parallel/flat.h"
#include "parallel/reduction/registry.h"
#include "parallel/reduction/sra.h"

namespace espalier::parallel {
namespace {

class AllToAllReduction final : public Reduction {
 public:
  AllToAllReduction(Communicator& comm, Arena& arena, const PieceOptions& options)
      : comm_(comm), arena_(arena), options_(options) {}

  static constexpr int64_t kWindow = 4;
  static size_t piece_bytes(const PieceOptions& options, int ranks) {
    const size_t shares = static_cast<size_t>(ranks) * kWindow;
    return std::max(kSmallestPiece, std::min(options.piece_bytes, options.staging_bytes / shares)) /
           kLine * kLine;
  }

  void reserve(const SliceJob& job) override;
  void start(const SliceJob& job) override;
  Progress advance() override;
  std::vector<int> missing() const override;

 private:
  /// One piece of the array.
  struct Slot {
    std::vector<Request> sends, receives;  ///< by peer
  };

  /// The code of a rank's piece.
  std::span<std::byte> message(int64_t index, int rank, size_t bytes) const {
    const auto place = static_cast<size_t>(index % kWindow * comm_.size() + rank);
    return flat_bytes(staging_.tensor()).subspan(place * slot_bytes_, bytes);
  }
  bool post();
  bool sum();
  Slot& slot(int64_t index) { return slots_.at(static_cast<size_t>(index % kWindow)); }
  bool complete(std::vector<Request>& requests) {
    std::erase_if(requests, [this](Request& request) { return comm_.test(request); });
    return requests.empty();
  }

  Communicator& comm_;
  Arena& arena_;
  PieceOptions options_;
  SliceJob job_;  ///< without data: no job in flight
  SlicePieces pieces_;
  size_t slot_bytes_ = 0;
  int64_t posted_ = 0;  ///< pieces
  int64_t summed_ = 0;  ///< pieces
  Buffer sum_;          ///< fp32, of a piece
  Buffer staging_;      ///< bytes [piece modulo window][rank][slot_bytes_]
  std::array<Slot, kWindow> slots_;
};

void AllToAllReduction::reserve(const SliceJob& job) {
  if (comm_.size() == 1 || flat_count(job.data) == 0) {
    return;
  }
  const int64_t n = job.data.count();
  const int64_t piece_elements = std::min(
      n, static_cast<int64_t>(piece_bytes(options_, comm_.size()) / size_of(job.data.dtype)));
  pieces_ = SlicePieces(job, {0, n}, piece_elements);
  slot_bytes_ = std::max<size_t>(1, pieces_.longest_message());
  parallel::reserve(
      arena_, staging_, "all-to-all staging", DType::uint8,
      std::min(kWindow, pieces_.most()) * comm_.size() * static_cast<int64_t>(slot_bytes_));
  parallel::reserve(arena_, sum_, "sums of a piece", DType::fp32, piece_elements);
  job.wire->reserve(job.data.dtype, piece_elements);
}

void AllToAllReduction::start(const SliceJob& job) {
  require(!job_.data && job.wire != nullptr, "one array at a time, and a wire for its codes");
  if (comm_.size() == 1 || flat_count(job.data) == 0) {
    return;
  }
  reserve(job);
  job_ = job;
  posted_ = 0;
  summed_ = 0;
  post();
}

bool AllToAllReduction::post() {
  bool moved = false;
  for (; posted_ < pieces_.most() && posted_ < summed_ + kWindow; ++posted_) {
    Slot& free = slot(posted_);
    if (!complete(free.sends)) {
      break;
    }
    const auto [elements, number, bytes] = pieces_.at(0, posted_);
    const std::span<std::byte> mine = message(posted_, comm_.rank(), bytes);
    job_.wire->encode(elements, number, mine);
    const Tag tag{2 * job_.number, Traffic::allreduce};
    for (int step = 1; step < comm_.size(); ++step) {
      const int peer = (comm_.rank() + step) % comm_.size();
      free.receives.push_back(comm_.irecv(peer, tag, message(posted_, peer, bytes)));
      free.sends.push_back(comm_.isend(peer, tag, mine));
    }
    moved = true;
  }
  return moved;
}

bool AllToAllReduction::sum() {
  bool moved = false;
  for (; summed_ < posted_ && complete(slot(summed_).receives); ++summed_) {
    const auto [mine, number, bytes] = pieces_.at(0, summed_);
    const Tensor sum = flat_part(sum_.tensor(), 0, mine.count());
    for (int rank = 0; rank < comm_.size(); ++rank) {
      const std::span<const std::byte> code = message(summed_, rank, bytes);
      rank == 0 ? job_.wire->decode(code, number, sum) : job_.wire->add(code, number, sum);
    }
    job_.wire->copy(sum, mine);
    moved = true;
  }
  return moved;
}

Progress AllToAllReduction::advance() {
  if (!job_.data) {
    return Progress::done;
  }
  bool moved = post();
  moved |= sum();
  bool all = summed_ == pieces_.most();
  for (size_t i = 0; all && i < slots_.size(); ++i) {
    all = complete(slots_[i].sends);
  }
  if (all) {
    job_ = {};
    return Progress::done;
  }
  return moved ? Progress::moved : Progress::stuck;
}

std::vector<int> AllToAllReduction::missing() const {
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

}  // namespace

extern const ReductionEntry kAllToAll{.name = "all-to-all",
                                      .help = "each rank sends all of its array to all",
                                      .make = make_with_sra_halves<AllToAllReduction>};

}  // namespace espalier::parallel
