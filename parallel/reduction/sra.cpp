#include "parallel/reduction/sra.h"

#include <algorithm>
#include <utility>

#include "parallel/flat.h"
#include "parallel/reduction/sum.h"

namespace espalier::parallel {

namespace {

// Pieces of one stream with one peer that are posted at once.
constexpr size_t kWindow = 4;
constexpr size_t kLanesOfAPeer = 3;  // scatter in and out, gather in; a gather has only the last

// A pair of ranks exchanges two streams in each direction; messages of a stream arrive in order.
Tag scatter_tag(int number) { return {2 * number, Traffic::allreduce}; }
Tag gather_tag(int number) { return {2 * number + 1, Traffic::allreduce}; }

size_t lanes_of(Phases phases) { return phases == Phases::gather ? 1 : kLanesOfAPeer; }

/// Bytes of the elements of a piece.
size_t piece_bytes(size_t longest_slice, size_t peers, Phases phases, bool coded,
                   const PieceOptions& options) {
  const size_t shares = peers * kWindow * (coded ? lanes_of(phases) + 1 : 1);
  const size_t most = coded || phases != Phases::gather
                          ? std::min(options.piece_bytes, options.staging_bytes / shares)
                          : options.piece_bytes;
  return std::min(std::max(kSmallestPiece, most / kLine * kLine), whole_lines(longest_slice));
}

}  // namespace

int64_t sra_piece(std::span<const int64_t> edges, DType dtype, Phases phases, bool coded,
                  const PieceOptions& options) {
  const size_t slice = static_cast<size_t>(longest_slice(edges)) * size_of(dtype);
  const size_t bytes = piece_bytes(slice, edges.size() - 2, phases, coded, options);
  return static_cast<int64_t>(bytes / size_of(dtype));
}

bool SraReduction::Messages::can_post() const { return posted < total && open.size() < kWindow; }

SraReduction::SraReduction(Communicator& comm, Arena& arena, const PieceOptions& options)
    : comm_(comm), arena_(arena), options_(options) {}

void SraReduction::reserve(const SliceJob& job) {
  const auto peers = static_cast<size_t>(comm_.size() - 1);
  if (peers == 0 || flat_count(job.data) == 0) {
    return;
  }
  SliceJob own = job;
  if (job.wire != nullptr && job.wire->plain(job.data.dtype)) {
    own.wire = nullptr;
  }
  wire_ = own.wire;
  std::vector<int64_t> edges = edges_of(job, comm_.size());
  const int64_t piece_elements =
      sra_piece(edges, job.data.dtype, job.phases, wire_ != nullptr, options_);
  pieces_ = SlicePieces(own, std::move(edges), piece_elements);
  lanes_ = lanes_of(job.phases);
  window_ = std::min(kWindow, static_cast<size_t>(pieces_.most()));
  slot_bytes_ = static_cast<size_t>(piece_elements) * size_of(job.data.dtype);
  size_t slots = peers * window_;
  if (wire_ != nullptr) {
    slots = (peers * lanes_ + 1) * window_;
    slot_bytes_ = whole_lines(pieces_.longest_message());
    wire_->reserve(job.data.dtype, piece_elements);
    if (job.phases != Phases::gather) {
      parallel::reserve(arena_, sum_, "sums of a piece", DType::fp32, piece_elements);
    }
  } else if (job.phases == Phases::gather) {
    return;
  }
  parallel::reserve(arena_, staging_, "all-reduce staging", DType::uint8,
                    static_cast<int64_t>(slots * slot_bytes_));
}

/// Memory of a message with `peer` about piece `index` of a slice.
std::span<std::byte> SraReduction::staged(Lane lane, size_t peer, int64_t index,
                                          size_t bytes) const {
  const size_t number = lane == Lane::gather_in    ? lanes_ - 1
                        : lane == Lane::gather_out ? lanes_
                                                   : static_cast<size_t>(lane);
  const size_t slot =
      (peers_.size() * number + peer) * window_ + static_cast<size_t>(index) % window_;
  return flat_bytes(staging_.tensor()).subspan(slot * slot_bytes_, bytes);
}

void SraReduction::start(const SliceJob& job) {
  require(finished(), "one array at a time", job.data.count());
  require(job.number >= 0 && job.number < kReductionNumbers, "number out of range", job.number);
  require(is_number(job.data.dtype), "fp32, bf16 or fp16", name_of(job.data.dtype));
  if (comm_.size() == 1 || flat_count(job.data) == 0) {
    return;
  }
  reserve(job);
  job_ = job;
  inputs_.resize(static_cast<size_t>(comm_.size()));
  peers_ = std::vector<Peer>(inputs_.size() - 1);
  // Each rank starts with the next rank, so that the ranks do not all send to the same rank first.
  for (int next = comm_.rank(); Peer & peer : peers_) {
    peer.rank = ++next % comm_.size();
  }
  my_pieces_ = pieces_.count(comm_.rank());
  const bool scatters = job.phases != Phases::gather;
  const bool gathers = job.phases != Phases::scatter;
  final_ = scatters || wire_ != nullptr ? 0 : my_pieces_;
  for (Peer& peer : peers_) {
    const int64_t theirs = pieces_.count(peer.rank);
    peer.scatter_out = {.total = scatters ? theirs : 0};
    peer.scatter_in = {.total = scatters ? my_pieces_ : 0};
    peer.gather_out = {.total = gathers ? my_pieces_ : 0};
    peer.gather_in = {.total = gathers ? theirs : 0};
  }
  for (size_t i = 0; i < peers_.size(); ++i) {
    post_scatter_in(i);
    if (!scatters) {
      post_gather_in(i);
    }
  }
  for (size_t i = 0; i < peers_.size(); ++i) {
    post_scatter_out(i);
    post_gather_out(peers_[i]);
  }
}

void SraReduction::post_scatter_in(size_t at) {
  Peer& peer = peers_[at];
  for (Messages& in = peer.scatter_in; in.can_post(); ++in.posted) {
    const size_t bytes = pieces_.at(comm_.rank(), in.posted).bytes;
    in.open.push_back(comm_.irecv(peer.rank, scatter_tag(job_.number),
                                  staged(Lane::scatter_in, at, in.posted, bytes)));
  }
}

void SraReduction::post_scatter_out(size_t at) {
  Peer& peer = peers_[at];
  for (Messages& out = peer.scatter_out; out.can_post(); ++out.posted) {
    const auto [mine, number, bytes] = pieces_.at(peer.rank, out.posted);
    std::span<const std::byte> message = flat_bytes(mine);
    if (wire_ != nullptr) {
      const std::span<std::byte> coded = staged(Lane::scatter_out, at, out.posted, bytes);
      wire_->encode(mine, number, coded);
      message = coded;
    }
    out.open.push_back(comm_.isend(peer.rank, scatter_tag(job_.number), message));
  }
}

void SraReduction::post_gather_out(Peer& peer) {
  for (Messages& out = peer.gather_out; out.posted < final_ && out.can_post(); ++out.posted) {
    const SlicePieces::Piece mine = pieces_.at(comm_.rank(), out.posted);
    const std::span<const std::byte> message =
        wire_ != nullptr ? staged(Lane::gather_out, 0, out.posted, mine.bytes)
                         : flat_bytes(mine.elements);
    out.open.push_back(comm_.isend(peer.rank, gather_tag(job_.number), message));
  }
}

void SraReduction::post_gather_in(size_t at) {
  Peer& peer = peers_[at];
  Messages& in = peer.gather_in;
  // The sum of a piece replaces this rank's version of it, which must have been sent before.
  const int64_t replaceable = job_.phases == Phases::gather ? in.total
                              : wire_ != nullptr            ? peer.scatter_out.posted
                                                            : peer.scatter_out.complete();
  for (; in.posted < replaceable && in.can_post(); ++in.posted) {
    const SlicePieces::Piece theirs = pieces_.at(peer.rank, in.posted);
    const std::span<std::byte> message = wire_ != nullptr
                                             ? staged(Lane::gather_in, at, in.posted, theirs.bytes)
                                             : flat_bytes(theirs.elements);
    in.open.push_back(comm_.irecv(peer.rank, gather_tag(job_.number), message));
  }
}

bool SraReduction::drain(std::deque<Request>& requests) {
  const size_t before = requests.size();
  while (!requests.empty() && comm_.test(requests.front())) {
    requests.pop_front();
  }
  return requests.size() < before;
}

bool SraReduction::drain_gather_in(size_t at) {
  Peer& peer = peers_[at];
  Messages& in = peer.gather_in;
  if (wire_ == nullptr) {
    return drain(in.open);
  }
  bool moved = false;
  for (; !in.open.empty() && comm_.test(in.open.front()); in.open.pop_front()) {
    const int64_t index = in.complete();
    const auto [theirs, number, bytes] = pieces_.at(peer.rank, index);
    wire_->decode(staged(Lane::gather_in, at, index, bytes), number, theirs);
    moved = true;
  }
  return moved;
}

bool SraReduction::exchange(size_t at) {
  Peer& peer = peers_[at];
  bool moved = drain(peer.scatter_out.open);
  post_scatter_out(at);
  moved |= drain(peer.gather_out.open);
  post_gather_out(peer);
  moved |= drain_gather_in(at);
  post_gather_in(at);
  return moved;
}

/// Whether staging has a free slot for an encoded sum, which all peers read from one place.
bool SraReduction::can_stage_sum() const {
  return wire_ == nullptr || job_.phases == Phases::scatter ||
         std::ranges::all_of(peers_, [this](const Peer& peer) {
           return final_ - peer.gather_out.complete() < static_cast<int64_t>(kWindow);
         });
}

bool SraReduction::sum_arrived() {
  if (final_ == my_pieces_ || !can_stage_sum()) {
    return false;
  }
  bool arrived = true;
  for (Peer& peer : peers_) {
    arrived &= job_.phases == Phases::gather || comm_.test(peer.scatter_in.open.front());
  }
  if (!arrived) {
    return false;
  }
  const SlicePieces::Piece mine = pieces_.at(comm_.rank(), final_);
  wire_ != nullptr ? sum_coded(mine) : sum_plain(mine.elements);
  ++final_;
  for (size_t i = 0; i < peers_.size(); ++i) {
    post_gather_out(peers_[i]);
    if (job_.phases != Phases::gather) {
      peers_[i].scatter_in.open.pop_front();
      post_scatter_in(i);
    }
  }
  return true;
}

void SraReduction::sum_plain(const Tensor& mine) {
  inputs_[comm_.rank()] = mine;
  for (size_t i = 0; i < peers_.size(); ++i) {
    inputs_[peers_[i].rank] = Tensor(staged(Lane::scatter_in, i, final_, mine.bytes()).data(),
                                     mine.dtype, Shape{mine.count()});
  }
  sum_in_order(inputs_, mine);
}

void SraReduction::sum_coded(const SlicePieces::Piece& piece) {
  const auto& [mine, number, bytes] = piece;
  Tensor sum = mine;
  if (job_.phases != Phases::gather) {
    sum = flat_part(sum_.tensor(), 0, mine.count());
    for (int rank = 0; rank < comm_.size(); ++rank) {
      if (rank == comm_.rank()) {
        rank == 0 ? wire_->copy(mine, sum) : wire_->add(mine, sum);
        continue;
      }
      // Peers are stored in ring order, starting after this rank.
      const auto at = static_cast<size_t>((rank - comm_.rank() - 1 + comm_.size()) % comm_.size());
      const std::span<const std::byte> message = staged(Lane::scatter_in, at, final_, bytes);
      rank == 0 ? wire_->decode(message, number, sum) : wire_->add(message, number, sum);
    }
  }
  if (job_.phases == Phases::scatter) {
    return wire_->copy(sum, mine);
  }
  wire_->encode(sum, number, staged(Lane::gather_out, 0, final_, bytes), mine);
}

Progress SraReduction::advance() {
  if (finished()) {
    return Progress::done;
  }
  bool moved = sum_arrived();
  for (size_t i = 0; i < peers_.size(); ++i) {
    moved |= exchange(i);
  }
  if (finished()) {
    job_ = {};
    return Progress::done;
  }
  return moved ? Progress::moved : Progress::stuck;
}

bool SraReduction::finished() const {
  return !job_.data ||
         (final_ == my_pieces_ && std::ranges::all_of(peers_, [](const Peer& peer) {
            return peer.scatter_out.done() && peer.gather_out.done() && peer.gather_in.done();
          }));
}

std::vector<int> SraReduction::missing() const {
  std::vector<int> ranks;
  for (const Peer& peer : peers_) {
    for (const Messages* messages :
         {&peer.scatter_out, &peer.scatter_in, &peer.gather_out, &peer.gather_in}) {
      if (!std::ranges::all_of(messages->open, &Request::done)) {
        ranks.push_back(peer.rank);
      }
    }
  }
  return distinct(std::move(ranks));
}

namespace {

class WithSraHalves final : public Reduction {
 public:
  WithSraHalves(Communicator& comm, Arena& arena, const PieceOptions& options,
                std::unique_ptr<Reduction> whole)
      : halves_(comm, arena, options), whole_(std::move(whole)) {}

  void reserve(const SliceJob& job) override { reduction_of(job).reserve(job); }
  void start(const SliceJob& job) override {
    current_ = &reduction_of(job);
    current_->start(job);
  }
  Progress advance() override { return current_->advance(); }
  std::vector<int> missing() const override { return current_->missing(); }

 private:
  Reduction& reduction_of(const SliceJob& job) {
    return job.phases == Phases::both ? *whole_ : halves_;
  }

  SraReduction halves_;
  std::unique_ptr<Reduction> whole_;
  Reduction* current_ = &halves_;
};

}  // namespace

std::unique_ptr<Reduction> with_sra_halves(Communicator& comm, Arena& arena,
                                           const PieceOptions& options,
                                           std::unique_ptr<Reduction> whole) {
  return std::make_unique<WithSraHalves>(comm, arena, options, std::move(whole));
}

}  // namespace espalier::parallel
