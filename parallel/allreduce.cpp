#include "parallel/allreduce.h"

#include <algorithm>

#include "parallel/sum.h"

namespace espalier::parallel {

namespace {

// Slices begin at multiples of a cache line, so that vector loads are aligned.
constexpr int64_t kAlignment = 16;
constexpr int64_t kSmallestPiece = 1024;  // elements
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
      inputs_(static_cast<size_t>(comm.size())),
      peers_(static_cast<size_t>(comm.size() - 1)) {
  // Each rank begins with the one after it, so that not all talk to the same rank first.
  int next = comm.rank();
  for (Peer& peer : peers_) {
    peer.rank = ++next % comm.size();
  }
}

AllReduce::Range AllReduce::slice(int rank) const {
  const auto n = static_cast<int64_t>(data_.size());
  const int64_t lines = (n + kAlignment - 1) / kAlignment;
  const auto edge = [&](int r) { return std::min(n, lines * r / comm_.size() * kAlignment); };
  return {.begin = edge(rank), .count = edge(rank + 1) - edge(rank)};
}

int64_t AllReduce::pieces(int rank) const {
  return (slice(rank).count + piece_elements_ - 1) / piece_elements_;
}

std::span<float> AllReduce::piece(int rank, int64_t index) const {
  const Range whole = slice(rank);
  const int64_t begin = index * piece_elements_;
  const int64_t count = std::min(piece_elements_, whole.count - begin);
  return data_.subspan(static_cast<size_t>(whole.begin + begin), static_cast<size_t>(count));
}

std::span<float> AllReduce::staged(size_t peer, int64_t index) const {
  const auto slot = static_cast<int64_t>(peer * kWindow) + index % static_cast<int64_t>(kWindow);
  const auto count = piece(comm_.rank(), index).size();
  return {staging_.tensor().get<float>() + slot * piece_elements_, count};
}

void AllReduce::choose_pieces() {
  const size_t shares = peers_.size() * kWindow;
  const auto most = static_cast<int64_t>(
      std::min(options_.piece_bytes, options_.staging_bytes / shares) / sizeof(float));
  const int64_t rounded = std::max(kSmallestPiece, most / kAlignment * kAlignment);
  // A short array needs less: its slice, rounded up to whole lines.
  const int64_t slice_lines = static_cast<int64_t>(data_.size()) / comm_.size() / kAlignment + 1;
  piece_elements_ = std::min(rounded, (slice_lines + 1) * kAlignment);
  const int64_t needed = static_cast<int64_t>(shares) * piece_elements_;
  if (needed > staging_.tensor().count() || !staging_.tensor()) {
    staging_.release();
    staging_ =
        arena_.allocate(Memory::communication, "all-reduce staging", DType::fp32, Shape{needed});
  }
}

void AllReduce::start(std::span<float> data, int number) {
  require(finished(), "one array at a time", data_.size());
  require(number >= 0 && number < kReductionNumbers, "number out of range", number);
  data_ = data;
  number_ = number;
  summed_ = 0;
  if (peers_.empty() || data.empty()) {
    data_ = {};
    return;
  }
  choose_pieces();
  for (Peer& peer : peers_) {
    peer.given = peer.taken = peer.fetched = 0;
    peer.pieces = pieces(peer.rank);
  }
  my_pieces_ = pieces(comm_.rank());
  for (size_t i = 0; i < peers_.size(); ++i) {
    post_takes(i);
  }
  for (Peer& peer : peers_) {
    post_gives(peer);
  }
}

void AllReduce::post_takes(size_t at) {
  Peer& peer = peers_[at];
  for (; peer.taken < my_pieces_ && peer.take.size() < kWindow; ++peer.taken) {
    peer.take.push_back(comm_.irecv(peer.rank, scatter_tag(number_),
                                    std::as_writable_bytes(staged(at, peer.taken))));
  }
}

void AllReduce::post_gives(Peer& peer) {
  for (; peer.given < peer.pieces && peer.give.size() < kWindow; ++peer.given) {
    peer.give.push_back(
        comm_.isend(peer.rank, scatter_tag(number_), std::as_bytes(piece(peer.rank, peer.given))));
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
  moved |= drain(peer.fetch);
  // The sum of a piece replaces my version of it, which must have left first.
  const int64_t gone = peer.given - static_cast<int64_t>(peer.give.size());
  for (; peer.fetched < gone && peer.fetch.size() < kWindow; ++peer.fetched) {
    peer.fetch.push_back(comm_.irecv(peer.rank, gather_tag(number_),
                                     std::as_writable_bytes(piece(peer.rank, peer.fetched))));
  }
  return moved;
}

bool AllReduce::sum_arrived() {
  if (summed_ == my_pieces_) {
    return false;
  }
  bool arrived = true;
  for (Peer& peer : peers_) {
    arrived &= comm_.test(peer.take.front());
  }
  if (!arrived) {
    return false;
  }
  const std::span<float> mine = piece(comm_.rank(), summed_);
  inputs_[comm_.rank()] = mine.data();
  for (size_t i = 0; i < peers_.size(); ++i) {
    inputs_[peers_[i].rank] = staged(i, summed_).data();
  }
  sum_in_order(inputs_, mine.data(), static_cast<int64_t>(mine.size()));
  ++summed_;
  for (size_t i = 0; i < peers_.size(); ++i) {
    peers_[i].spread.push_back(
        comm_.isend(peers_[i].rank, gather_tag(number_), std::as_bytes(mine)));
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
  if (data_.empty()) {
    return true;
  }
  return summed_ == my_pieces_ && std::ranges::all_of(peers_, [](const Peer& peer) {
           return peer.given == peer.pieces && peer.fetched == peer.pieces && peer.give.empty() &&
                  peer.spread.empty() && peer.fetch.empty();
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
