#include "parallel/allreduce.h"

#include <algorithm>

#include "parallel/flat.h"
#include "parallel/sum.h"

namespace espalier::parallel {

namespace {

// Even slices and pieces begin at multiples of a cache line, so that vector loads are aligned.
constexpr size_t kLine = 64;
constexpr size_t kSmallestPiece = 4096;  // bytes
// Pieces of one stream with one peer that are posted at once.
constexpr size_t kWindow = 4;

// A pair of ranks exchanges two streams in each direction; within one, messages come in order.
Tag scatter_tag(int number) { return {2 * number, Traffic::allreduce}; }
Tag gather_tag(int number) { return {2 * number + 1, Traffic::allreduce}; }

bool open(const std::deque<Request>& requests) {
  return std::ranges::any_of(requests, [](const Request& r) { return !r.done(); });
}

}  // namespace

void Reduction::wait(Communicator& comm) {
  comm.wait_until([this] { return advance(); }, [this] { return missing(); },
                  "summing gradients over all ranks");
}

AllReduce::AllReduce(Communicator& comm, Arena& arena, const AllReduceOptions& options)
    : comm_(comm),
      arena_(arena),
      options_(options),
      edges_(static_cast<size_t>(comm.size()) + 1),
      inputs_(static_cast<size_t>(comm.size())),
      peers_(static_cast<size_t>(comm.size() - 1)) {
  // Each rank begins with the one after it, so that not all talk to the same rank first.
  int next = comm.rank();
  for (Peer& peer : peers_) {
    peer.rank = ++next % comm.size();
  }
}

void AllReduce::set_edges(const SliceJob& job) {
  const int64_t n = job.data.count();
  if (job.edges.empty()) {
    const auto line = static_cast<int64_t>(kLine / size_of(job.data.dtype));
    const int64_t lines = (n + line - 1) / line;
    for (size_t r = 0; r < edges_.size(); ++r) {
      edges_[r] = std::min(n, lines * static_cast<int64_t>(r) / comm_.size() * line);
    }
    return;
  }
  require(job.edges.size() == edges_.size() && job.edges.front() == 0 && job.edges.back() == n &&
              std::ranges::is_sorted(job.edges),
          "ascending edges from the array's begin to its end", job.edges.size(), job.edges.front(),
          job.edges.back(), n);
  std::ranges::copy(job.edges, edges_.begin());
}

/// A pure function of what all ranks know: sender and receiver must cut alike.
void AllReduce::choose_pieces() {
  const size_t shares = peers_.size() * kWindow;
  const size_t element = size_of(data_.dtype);
  const bool sums = phases_ != Phases::gather;
  const size_t most =
      sums ? std::min(options_.piece_bytes, options_.staging_bytes / shares) : options_.piece_bytes;
  int64_t longest = 0;
  for (size_t r = 0; r + 1 < edges_.size(); ++r) {
    longest = std::max(longest, edges_[r + 1] - edges_[r]);
  }
  const size_t slice_bytes = (static_cast<size_t>(longest) * element + kLine - 1) / kLine * kLine;
  const size_t bytes = std::min(std::max(kSmallestPiece, most / kLine * kLine), slice_bytes);
  piece_elements_ = static_cast<int64_t>(bytes / element);
  const auto needed = static_cast<int64_t>(shares * bytes);
  const int64_t present = staging_.tensor() ? staging_.tensor().count() : 0;
  if (sums && pieces(comm_.rank()) > 0 && needed > present) {
    staging_.release();
    staging_ =
        arena_.allocate(Memory::communication, "all-reduce staging", DType::uint8, Shape{needed});
  }
}

int64_t AllReduce::pieces(int rank) const {
  return (edges_[rank + 1] - edges_[rank] + piece_elements_ - 1) / piece_elements_;
}

Tensor AllReduce::piece(int rank, int64_t index) const {
  const int64_t begin = edges_[rank] + index * piece_elements_;
  return flat_part(data_, begin, std::min(piece_elements_, edges_[rank + 1] - begin));
}

Tensor AllReduce::staged(size_t peer, int64_t index) const {
  const auto slot = static_cast<int64_t>(peer * kWindow) + index % static_cast<int64_t>(kWindow);
  const Tensor room(staging_.tensor().data, data_.dtype, Shape{(slot + 1) * piece_elements_});
  return flat_part(room, slot * piece_elements_, piece(comm_.rank(), index).count());
}

void AllReduce::start(const SliceJob& job) {
  require(finished(), "one array at a time", job.data.count());
  require(job.number >= 0 && job.number < kReductionNumbers, "number out of range", job.number);
  require(job.data.dtype == DType::fp32 || job.data.dtype == DType::bf16, "fp32 or bf16",
          name_of(job.data.dtype));
  if (peers_.empty() || flat_count(job.data) == 0) {
    return;
  }
  set_edges(job);
  data_ = job.data;
  phases_ = job.phases;
  number_ = job.number;
  choose_pieces();
  my_pieces_ = pieces(comm_.rank());
  // The counters of a half that is left out begin at their ends.
  final_ = phases_ == Phases::gather ? my_pieces_ : 0;
  for (Peer& peer : peers_) {
    peer.pieces = pieces(peer.rank);
    peer.given = phases_ == Phases::gather ? peer.pieces : 0;
    peer.taken = phases_ == Phases::gather ? my_pieces_ : 0;
    peer.sent = phases_ == Phases::scatter ? my_pieces_ : 0;
    peer.fetched = phases_ == Phases::scatter ? peer.pieces : 0;
  }
  for (size_t i = 0; i < peers_.size(); ++i) {
    post_takes(i);
    if (phases_ == Phases::gather) {
      post_fetches(peers_[i]);
    }
  }
  for (Peer& peer : peers_) {
    post_gives(peer);
    post_spreads(peer);
  }
}

void AllReduce::post_takes(size_t at) {
  Peer& peer = peers_[at];
  for (; peer.taken < my_pieces_ && peer.take.size() < kWindow; ++peer.taken) {
    peer.take.push_back(
        comm_.irecv(peer.rank, scatter_tag(number_), flat_bytes(staged(at, peer.taken))));
  }
}

void AllReduce::post_gives(Peer& peer) {
  for (; peer.given < peer.pieces && peer.give.size() < kWindow; ++peer.given) {
    peer.give.push_back(
        comm_.isend(peer.rank, scatter_tag(number_), flat_bytes(piece(peer.rank, peer.given))));
  }
}

void AllReduce::post_spreads(Peer& peer) {
  for (; peer.sent < final_ && peer.spread.size() < kWindow; ++peer.sent) {
    peer.spread.push_back(
        comm_.isend(peer.rank, gather_tag(number_), flat_bytes(piece(comm_.rank(), peer.sent))));
  }
}

void AllReduce::post_fetches(Peer& peer) {
  // The sum of a piece replaces my version of it, which must have left first.
  const int64_t gone = peer.given - static_cast<int64_t>(peer.give.size());
  for (; peer.fetched < gone && peer.fetch.size() < kWindow; ++peer.fetched) {
    peer.fetch.push_back(
        comm_.irecv(peer.rank, gather_tag(number_), flat_bytes(piece(peer.rank, peer.fetched))));
  }
}

bool AllReduce::drain(std::deque<Request>& requests) {
  const size_t before = requests.size();
  while (!requests.empty() && comm_.test(requests.front())) {
    requests.pop_front();
  }
  return requests.size() < before;
}

bool AllReduce::exchange(Peer& peer) {
  bool moved = drain(peer.give);
  post_gives(peer);
  moved |= drain(peer.spread);
  post_spreads(peer);
  moved |= drain(peer.fetch);
  post_fetches(peer);
  return moved;
}

bool AllReduce::sum_arrived() {
  if (final_ == my_pieces_) {
    return false;
  }
  bool arrived = true;
  for (Peer& peer : peers_) {
    arrived &= comm_.test(peer.take.front());
  }
  if (!arrived) {
    return false;
  }
  const Tensor mine = piece(comm_.rank(), final_);
  inputs_[comm_.rank()] = mine;
  for (size_t i = 0; i < peers_.size(); ++i) {
    inputs_[peers_[i].rank] = staged(i, final_);
  }
  sum_in_order(inputs_, mine);
  ++final_;
  for (size_t i = 0; i < peers_.size(); ++i) {
    post_spreads(peers_[i]);
    peers_[i].take.pop_front();
    post_takes(i);
  }
  return true;
}

Progress AllReduce::advance() {
  if (finished()) {
    return Progress::done;
  }
  bool moved = sum_arrived();
  for (Peer& peer : peers_) {
    moved |= exchange(peer);
  }
  if (finished()) {
    data_ = {};
    return Progress::done;
  }
  return moved ? Progress::moved : Progress::stuck;
}

bool AllReduce::finished() const {
  if (!data_) {
    return true;
  }
  return final_ == my_pieces_ && std::ranges::all_of(peers_, [this](const Peer& peer) {
           return peer.given == peer.pieces && peer.sent == my_pieces_ &&
                  peer.fetched == peer.pieces && peer.give.empty() && peer.spread.empty() &&
                  peer.fetch.empty();
         });
}

std::vector<int> AllReduce::missing() const {
  std::vector<int> ranks;
  for (const Peer& peer : peers_) {
    if (open(peer.give) || open(peer.take) || open(peer.spread) || open(peer.fetch)) {
      ranks.push_back(peer.rank);
    }
  }
  std::ranges::sort(ranks);
  return ranks;
}

}  // namespace espalier::parallel
