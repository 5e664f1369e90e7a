#include "parallel/reduction/sra.h"

#include <algorithm>
#include <utility>

#include "parallel/reduction/flat.h"
#include "parallel/reduction/sum.h"

namespace espalier::parallel {

namespace {

// Pieces of one stream with one peer that are posted at once.
constexpr size_t kWindow = 4;
constexpr size_t kLanesOfAPeer = 3;  // take, give, fetch; a gather has only fetch

// A pair of ranks exchanges two streams in each direction; messages of a stream arrive in order.
Tag scatter_tag(int number) { return {2 * number, Traffic::allreduce}; }
Tag gather_tag(int number) { return {2 * number + 1, Traffic::allreduce}; }

size_t lanes_of(Phases phases) { return phases == Phases::gather ? 1 : kLanesOfAPeer; }

int64_t longest_slice(std::span<const int64_t> edges) {
  int64_t longest = 0;
  for (size_t r = 0; r + 1 < edges.size(); ++r) {
    longest = std::max(longest, edges[r + 1] - edges[r]);
  }
  return longest;
}

bool open(const std::deque<Request>& requests) {
  return std::ranges::any_of(requests, [](const Request& r) { return !r.done(); });
}

size_t whole_lines(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

}  // namespace

int64_t sra_piece(std::span<const int64_t> edges, DType dtype, Phases phases, bool coded,
                  const PieceOptions& options) {
  const size_t element = size_of(dtype);
  const size_t peers = edges.size() - 2;
  const size_t shares = peers * kWindow * (coded ? lanes_of(phases) + 1 : 1);
  const size_t most = coded || phases != Phases::gather
                          ? std::min(options.piece_bytes, options.staging_bytes / shares)
                          : options.piece_bytes;
  const size_t slice = whole_lines(static_cast<size_t>(longest_slice(edges)) * element);
  const size_t bytes = std::min(std::max(kSmallestPiece, most / kLine * kLine), slice);
  return static_cast<int64_t>(bytes / element);
}

SraReduction::SraReduction(Communicator& comm, Arena& arena, const PieceOptions& options)
    : comm_(comm),
      arena_(arena),
      options_(options),
      edges_(static_cast<size_t>(comm.size()) + 1),
      inputs_(static_cast<size_t>(comm.size())),
      peers_(static_cast<size_t>(comm.size() - 1)) {
  // Each rank starts with the next rank, so that the ranks do not all send to the same rank first.
  int next = comm.rank();
  for (Peer& peer : peers_) {
    peer.rank = ++next % comm.size();
  }
}

void SraReduction::choose_pieces() {
  lanes_ = lanes_of(phases_);
  piece_elements_ = sra_piece(edges_, data_.dtype, phases_, wire_ != nullptr, options_);
  slot_bytes_ = static_cast<size_t>(piece_elements_) * size_of(data_.dtype);
  const int64_t count = (longest_slice(edges_) + piece_elements_ - 1) / piece_elements_;
  window_ = std::min(kWindow, static_cast<size_t>(count));
  if (wire_ != nullptr || phases_ != Phases::gather) {
    allocate_staging();
  }
}

void SraReduction::allocate_staging() {
  size_t slots = peers_.size() * window_;
  if (wire_ != nullptr) {
    slots = (peers_.size() * lanes_ + 1) * window_;
    size_t longest = 0;
    for (int rank = 0; rank < comm_.size(); ++rank) {
      for (int64_t index = 0; index < pieces(rank); ++index) {
        longest =
            std::max(longest, wire_->bytes(number_of(rank, index), piece(rank, index).count()));
      }
    }
    slot_bytes_ = whole_lines(longest);
    if (phases_ != Phases::gather) {
      reserve(arena_, sum_, "sums of a piece", DType::fp32, piece_elements_);
    }
  } else if (pieces(comm_.rank()) == 0) {
    return;
  }
  reserve(arena_, staging_, "all-reduce staging", DType::uint8,
          static_cast<int64_t>(slots * slot_bytes_));
}

int64_t SraReduction::pieces(int rank) const {
  return (edges_[rank + 1] - edges_[rank] + piece_elements_ - 1) / piece_elements_;
}

Tensor SraReduction::piece(int rank, int64_t index) const {
  const int64_t begin = edges_[rank] + index * piece_elements_;
  return flat_part(data_, begin, std::min(piece_elements_, edges_[rank + 1] - begin));
}

/// The piece's first element, in the wire's numbering.
int64_t SraReduction::number_of(int rank, int64_t index) const {
  return first_ + edges_[rank] + index * piece_elements_;
}

/// Position of a message with `peer` about a piece of `rank`'s slice.
std::span<std::byte> SraReduction::room(Lane lane, size_t peer, int rank, int64_t index) const {
  const size_t number = lane == Lane::fetch ? lanes_ - 1 : static_cast<size_t>(lane);
  const size_t lane_peer = peers_.size() * (lane == Lane::spread ? lanes_ : number) + peer;
  const size_t slot = lane_peer * window_ + static_cast<size_t>(index) % window_;
  const Tensor elements = piece(rank, index);
  const size_t bytes =
      wire_ != nullptr ? wire_->bytes(number_of(rank, index), elements.count()) : elements.bytes();
  return flat_bytes(staging_.tensor()).subspan(slot * slot_bytes_, bytes);
}

void SraReduction::start(const SliceJob& job) {
  require(finished(), "one array at a time", job.data.count());
  require(job.number >= 0 && job.number < kReductionNumbers, "number out of range", job.number);
  require(is_number(job.data.dtype), "fp32, bf16 or fp16", name_of(job.data.dtype));
  if (peers_.empty() || flat_count(job.data) == 0) {
    return;
  }
  edges_ = edges_of(job, comm_.size());
  data_ = job.data;
  phases_ = job.phases;
  number_ = job.number;
  const bool coded = job.wire != nullptr && !job.wire->plain(job.data.dtype);
  wire_ = coded ? job.wire : nullptr;
  first_ = job.first;
  choose_pieces();
  my_pieces_ = pieces(comm_.rank());
  const bool scatters = phases_ != Phases::gather;
  // Counters of a phase that does not run start at their ends.
  final_ = scatters || wire_ != nullptr ? 0 : my_pieces_;
  for (Peer& peer : peers_) {
    peer.pieces = pieces(peer.rank);
    peer.given = scatters ? 0 : peer.pieces;
    peer.taken = scatters ? 0 : my_pieces_;
    peer.sent = phases_ == Phases::scatter ? my_pieces_ : 0;
    peer.fetched = phases_ == Phases::scatter ? peer.pieces : 0;
  }
  for (size_t i = 0; i < peers_.size(); ++i) {
    post_takes(i);
    if (!scatters) {
      post_fetches(i);
    }
  }
  for (size_t i = 0; i < peers_.size(); ++i) {
    post_gives(i);
    post_spreads(peers_[i]);
  }
}

void SraReduction::post_takes(size_t at) {
  Peer& peer = peers_[at];
  for (; peer.taken < my_pieces_ && peer.take.size() < kWindow; ++peer.taken) {
    peer.take.push_back(comm_.irecv(peer.rank, scatter_tag(number_),
                                    room(Lane::take, at, comm_.rank(), peer.taken)));
  }
}

void SraReduction::post_gives(size_t at) {
  Peer& peer = peers_[at];
  for (; peer.given < peer.pieces && peer.give.size() < kWindow; ++peer.given) {
    const Tensor mine = piece(peer.rank, peer.given);
    std::span<const std::byte> message = flat_bytes(mine);
    if (wire_ != nullptr) {
      const std::span<std::byte> coded = room(Lane::give, at, peer.rank, peer.given);
      wire_->encode(mine, number_of(peer.rank, peer.given), coded);
      message = coded;
    }
    peer.give.push_back(comm_.isend(peer.rank, scatter_tag(number_), message));
  }
}

void SraReduction::post_spreads(Peer& peer) {
  for (; peer.sent < final_ && peer.spread.size() < kWindow; ++peer.sent) {
    const std::span<const std::byte> message = wire_ != nullptr
                                                   ? room(Lane::spread, 0, comm_.rank(), peer.sent)
                                                   : flat_bytes(piece(comm_.rank(), peer.sent));
    peer.spread.push_back(comm_.isend(peer.rank, gather_tag(number_), message));
  }
}

void SraReduction::post_fetches(size_t at) {
  Peer& peer = peers_[at];
  // The sum of a piece replaces this rank's version of it, which must have been sent before.
  const int64_t gone =
      wire_ != nullptr ? peer.given : peer.given - static_cast<int64_t>(peer.give.size());
  for (; peer.fetched < gone && peer.fetch.size() < kWindow; ++peer.fetched) {
    const std::span<std::byte> message = wire_ != nullptr
                                             ? room(Lane::fetch, at, peer.rank, peer.fetched)
                                             : flat_bytes(piece(peer.rank, peer.fetched));
    peer.fetch.push_back(comm_.irecv(peer.rank, gather_tag(number_), message));
  }
}

bool SraReduction::drain(std::deque<Request>& requests) {
  const size_t before = requests.size();
  while (!requests.empty() && comm_.test(requests.front())) {
    requests.pop_front();
  }
  return requests.size() < before;
}

bool SraReduction::drain_fetches(size_t at) {
  if (wire_ == nullptr) {
    return drain(peers_[at].fetch);
  }
  Peer& peer = peers_[at];
  bool moved = false;
  while (!peer.fetch.empty() && comm_.test(peer.fetch.front())) {
    const int64_t index = peer.fetched - static_cast<int64_t>(peer.fetch.size());
    wire_->decode(room(Lane::fetch, at, peer.rank, index), number_of(peer.rank, index),
                  piece(peer.rank, index));
    peer.fetch.pop_front();
    moved = true;
  }
  return moved;
}

bool SraReduction::exchange(size_t at) {
  Peer& peer = peers_[at];
  bool moved = drain(peer.give);
  post_gives(at);
  moved |= drain(peer.spread);
  post_spreads(peer);
  moved |= drain_fetches(at);
  post_fetches(at);
  return moved;
}

/// Space for encoded sums, which all peers read from one place.
bool SraReduction::spread_has_room() const {
  return wire_ == nullptr || phases_ == Phases::scatter ||
         std::ranges::all_of(peers_, [this](const Peer& peer) {
           const int64_t through = peer.sent - static_cast<int64_t>(peer.spread.size());
           return final_ - through < static_cast<int64_t>(kWindow);
         });
}

bool SraReduction::sum_arrived() {
  if (final_ == my_pieces_ || !spread_has_room()) {
    return false;
  }
  bool arrived = true;
  for (Peer& peer : peers_) {
    arrived &= phases_ == Phases::gather || comm_.test(peer.take.front());
  }
  if (!arrived) {
    return false;
  }
  const Tensor mine = piece(comm_.rank(), final_);
  wire_ != nullptr ? sum_coded(mine) : sum_plain(mine);
  ++final_;
  for (size_t i = 0; i < peers_.size(); ++i) {
    post_spreads(peers_[i]);
    if (phases_ != Phases::gather) {
      peers_[i].take.pop_front();
      post_takes(i);
    }
  }
  return true;
}

void SraReduction::sum_plain(const Tensor& mine) {
  inputs_[comm_.rank()] = mine;
  for (size_t i = 0; i < peers_.size(); ++i) {
    inputs_[peers_[i].rank] =
        Tensor(room(Lane::take, i, comm_.rank(), final_).data(), mine.dtype, Shape{mine.count()});
  }
  sum_in_order(inputs_, mine);
}

void SraReduction::sum_coded(const Tensor& mine) {
  const int64_t number = number_of(comm_.rank(), final_);
  Tensor sum = mine;
  if (phases_ != Phases::gather) {
    sum = flat_part(sum_.tensor(), 0, mine.count());
    for (int rank = 0; rank < comm_.size(); ++rank) {
      if (rank == comm_.rank()) {
        rank == 0 ? wire_->copy(mine, sum) : wire_->add(mine, sum);
        continue;
      }
      // Peers are stored in ring order, starting after this rank.
      const auto at = static_cast<size_t>((rank - comm_.rank() - 1 + comm_.size()) % comm_.size());
      const std::span<const std::byte> message = room(Lane::take, at, comm_.rank(), final_);
      rank == 0 ? wire_->decode(message, number, sum) : wire_->add(message, number, sum);
    }
  }
  if (phases_ == Phases::scatter) {
    return wire_->copy(sum, mine);
  }
  wire_->encode(sum, number, room(Lane::spread, 0, comm_.rank(), final_), mine);
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
    data_ = {};
    return Progress::done;
  }
  return moved ? Progress::moved : Progress::stuck;
}

bool SraReduction::finished() const {
  if (!data_) {
    return true;
  }
  return final_ == my_pieces_ && std::ranges::all_of(peers_, [this](const Peer& peer) {
           return peer.given == peer.pieces && peer.sent == my_pieces_ &&
                  peer.fetched == peer.pieces && peer.give.empty() && peer.spread.empty() &&
                  peer.fetch.empty();
         });
}

std::vector<int> SraReduction::missing() const {
  std::vector<int> ranks;
  for (const Peer& peer : peers_) {
    if (open(peer.give) || open(peer.take) || open(peer.spread) || open(peer.fetch)) {
      ranks.push_back(peer.rank);
    }
  }
  return distinct(std::move(ranks));
}

}  // namespace espalier::parallel
