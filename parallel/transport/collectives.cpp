#include "parallel/transport/collectives.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

namespace espalier::parallel {

namespace {

// Each collective has its own number. Ranks that disagree on the next collective then time out in a
// named collective instead of misreading each other's bytes.
constexpr Tag tag_of(int number) { return {number, Traffic::other}; }
constexpr Tag kBarrier = tag_of(0);
constexpr Tag kBroadcast = tag_of(1);
constexpr Tag kAllGather = tag_of(2);
constexpr Tag kGatherSize = tag_of(3);
constexpr Tag kGather = tag_of(4);
constexpr Tag kGatherSlices = tag_of(5);
constexpr Tag kScatterIntegers = {6, Traffic::allreduce};
constexpr Tag kGatherIntegers = {7, Traffic::allreduce};

/// Messages with peers, awaited together, so that a timeout can name all missing ranks.
class Exchange {
 public:
  explicit Exchange(Communicator& comm) : comm_(comm) {}

  void send(int to, Tag tag, std::span<const std::byte> data) {
    open_.push_back({to, comm_.isend(to, tag, data)});
  }
  void receive(int from, Tag tag, std::span<std::byte> data) {
    open_.push_back({from, comm_.irecv(from, tag, data)});
  }
  void wait(std::string_view doing) {
    comm_.wait_until([this] { return step(); }, [this] { return missing(); }, doing);
  }

 private:
  struct Open {
    int peer;
    Request request;
  };

  Progress step() {
    const auto done = std::erase_if(open_, [this](Open& o) { return comm_.test(o.request); });
    if (open_.empty()) {
      return Progress::done;
    }
    return done > 0 ? Progress::moved : Progress::stuck;
  }
  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (const Open& open : open_) {
      ranks.push_back(open.peer);
    }
    return distinct(std::move(ranks));
  }

  Communicator& comm_;
  std::vector<Open> open_;
};

/// The other ranks, starting after this one, so that the ranks do not all send to the same rank
/// first.
std::vector<int> others(const Communicator& comm) {
  std::vector<int> ranks;
  for (int step = 1; step < comm.size(); ++step) {
    ranks.push_back((comm.rank() + step) % comm.size());
  }
  return ranks;
}

}  // namespace

void barrier(Communicator& comm) {
  Exchange exchange(comm);
  for (const int peer : others(comm)) {
    exchange.receive(peer, kBarrier, {});
    exchange.send(peer, kBarrier, {});
  }
  exchange.wait("waiting in a barrier");
}

void broadcast(Communicator& comm, int root, std::span<std::byte> data) {
  // Binomial tree over ranks counted from the root: a rank's parent is its own number without the
  // lowest bit.
  const int size = comm.size();
  const int me = (comm.rank() - root + size) % size;
  int bit = 1;
  for (; bit < size; bit *= 2) {
    if ((me & bit) != 0) {
      Exchange parent(comm);
      parent.receive((me - bit + root) % size, kBroadcast, data);
      parent.wait("receiving a broadcast");
      break;
    }
  }
  Exchange children(comm);
  for (bit /= 2; bit > 0; bit /= 2) {
    if (me + bit < size) {
      children.send((me + bit + root) % size, kBroadcast, data);
    }
  }
  children.wait("sending a broadcast");
}

void all_gather(Communicator& comm, std::span<const std::byte> mine, std::span<std::byte> all) {
  const size_t n = mine.size();
  require(all.size() == n * static_cast<size_t>(comm.size()), "one block a rank", all.size(), n);
  Exchange exchange(comm);
  for (const int peer : others(comm)) {
    exchange.receive(peer, kAllGather, all.subspan(static_cast<size_t>(peer) * n, n));
    exchange.send(peer, kAllGather, mine);
  }
  if (n > 0) {
    std::memmove(all.data() + static_cast<size_t>(comm.rank()) * n, mine.data(), n);
  }
  exchange.wait("gathering from all ranks");
}

void all_reduce_integers(Communicator& comm, std::span<int64_t> values) {
  const auto ranks = static_cast<size_t>(comm.size());
  if (ranks == 1) {
    return;
  }
  // Each rank sums one slice of a block, and all slices of the block are staged at once.
  const size_t slice = std::max<size_t>(kIntegerStaging / sizeof(int64_t) / ranks, 1);
  std::vector<int64_t> staged(std::min(slice, values.size()) * (ranks - 1));
  const std::vector<int> peers = others(comm);
  for (size_t first = 0; first < values.size(); first += slice * ranks) {
    const std::span<int64_t> block =
        values.subspan(first, std::min(slice * ranks, values.size() - first));
    const auto slice_of = [&](int rank) {
      const size_t each = (block.size() + ranks - 1) / ranks;
      const size_t begin = std::min(static_cast<size_t>(rank) * each, block.size());
      return block.subspan(begin, std::min(each, block.size() - begin));
    };
    const std::span<int64_t> mine = slice_of(comm.rank());
    const auto version = [&](size_t i) {
      return std::span(staged).subspan(i * mine.size(), mine.size());
    };
    Exchange scatter(comm);
    for (size_t i = 0; i < peers.size(); ++i) {
      scatter.receive(peers[i], kScatterIntegers, std::as_writable_bytes(version(i)));
      scatter.send(peers[i], kScatterIntegers, std::as_bytes(slice_of(peers[i])));
    }
    scatter.wait("summing integers");
    for (size_t i = 0; i < peers.size(); ++i) {
      std::ranges::transform(mine, version(i), mine.begin(), std::plus<>());
    }
    Exchange all(comm);
    for (const int peer : peers) {
      all.receive(peer, kGatherIntegers, std::as_writable_bytes(slice_of(peer)));
      all.send(peer, kGatherIntegers, std::as_bytes(mine));
    }
    all.wait("gathering sums of integers");
  }
}

std::vector<std::vector<std::byte>> gather(Communicator& comm, std::span<const std::byte> mine) {
  uint64_t my_size = mine.size();
  if (comm.rank() != 0) {
    Exchange exchange(comm);
    exchange.send(0, kGatherSize, std::as_bytes(std::span(&my_size, 1)));
    exchange.send(0, kGather, mine);
    exchange.wait("gathering at rank 0");
    return {};
  }
  std::vector<uint64_t> sizes(static_cast<size_t>(comm.size()), my_size);
  Exchange lengths(comm);
  for (const int peer : others(comm)) {
    lengths.receive(peer, kGatherSize, std::as_writable_bytes(std::span(&sizes[peer], 1)));
  }
  lengths.wait("gathering sizes at rank 0");
  std::vector<std::vector<std::byte>> all;
  for (const uint64_t size : sizes) {
    all.emplace_back(size);
  }
  std::ranges::copy(mine, all[0].begin());
  Exchange contents(comm);
  for (const int peer : others(comm)) {
    contents.receive(peer, kGather, all[peer]);
  }
  contents.wait("gathering at rank 0");
  return all;
}

void gather_slices(Communicator& comm, const SliceGather& slices) {
  const auto& [ranges, mine, whole, everywhere] = slices;
  require(ranges.size() == static_cast<size_t>(comm.size()), "one range a rank", ranges.size());
  require(std::cmp_equal(mine.size(), ranges[comm.rank()].count), "my part of the array",
          mine.size(), ranges[comm.rank()].count);
  const bool receives = everywhere || comm.rank() == 0;
  for (const Range& range : ranges) {
    require(range.first >= 0 && range.count >= 0 &&
                (!receives || std::cmp_less_equal(range.end(), whole.size())),
            "ranges within the array", range.first, range.count, whole.size());
  }
  const auto place = [&](int rank) {
    const Range& range = ranges[rank];
    return whole.subspan(static_cast<size_t>(range.first), static_cast<size_t>(range.count));
  };
  Exchange exchange(comm);
  for (const int peer : others(comm)) {  // all ranks know the ranges: an empty range has no message
    if (receives && ranges[peer].count > 0) {
      exchange.receive(peer, kGatherSlices, place(peer));
    }
    if ((everywhere || peer == 0) && !mine.empty()) {
      exchange.send(peer, kGatherSlices, mine);
    }
  }
  if (receives && !mine.empty() && place(comm.rank()).data() != mine.data()) {
    std::memcpy(place(comm.rank()).data(), mine.data(), mine.size());
  }
  exchange.wait("gathering slices");
}

void all_reduce_small(Communicator& comm, std::span<double> values, Combine combine) {
  std::vector<double> all(values.size() * static_cast<size_t>(comm.size()));
  all_gather(comm, std::as_bytes(values), std::as_writable_bytes(std::span(all)));
  for (size_t i = 0; i < values.size(); ++i) {
    double result = all[i];
    for (size_t at = i + values.size(); at < all.size(); at += values.size()) {
      const double x = all[at];
      if (combine == Combine::sum) {
        result += x;
      } else if (x > result || std::isnan(x)) {  // comparisons with NaN are false: it stays
        result = x;
      }
    }
    values[i] = result;
  }
}

SplitPart split_by_messages(Communicator& comm, int color, int key,
                            const std::function<int(int)>& reserve) {
  struct Member {
    int color, key, context;
  };
  // Rank 0 reserves the contexts of all groups; a group takes the one at its first member's index.
  const Member mine{color, key, comm.rank() == 0 ? reserve(comm.size()) : 0};
  std::vector<Member> all(static_cast<size_t>(comm.size()));
  all_gather(comm, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  std::vector<int> group;
  for (int r = 0; r < comm.size(); ++r) {
    if (all[r].color == color) {
      group.push_back(r);
    }
  }
  SplitPart part{.members = {}, .context = all[0].context + group.front()};
  std::ranges::stable_sort(group, {}, [&](int r) { return all[r].key; });
  for (const int r : group) {
    part.members.rank =
        r == comm.rank() ? static_cast<int>(part.members.world.size()) : part.members.rank;
    part.members.world.push_back(comm.members().world[r]);
    part.members.node.push_back(comm.members().node[r]);
  }
  return part;
}

}  // namespace espalier::parallel
