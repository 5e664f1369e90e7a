#include "src/train/masks/competition.h"

#include <algorithm>
#include <array>

#include "parallel/transport/collectives.h"

namespace espalier::train {
namespace {

void sum_over(parallel::Communicator& comm, std::span<int64_t> counts) {
  std::vector<int64_t> all(counts.size() * static_cast<size_t>(comm.size()));
  parallel::all_gather(comm, std::as_bytes(counts), std::as_writable_bytes(std::span(all)));
  for (size_t i = 0; i < counts.size(); ++i) {
    counts[i] = 0;
    for (size_t at = i; at < all.size(); at += counts.size()) {
      counts[i] += all[at];
    }
  }
}

std::vector<std::vector<std::byte>> gather_from(parallel::Communicator& comm,
                                                std::span<const std::byte> mine) {
  const std::array<int64_t, 1> length{static_cast<int64_t>(mine.size())};
  std::vector<int64_t> lengths(static_cast<size_t>(comm.size()));
  parallel::all_gather(comm, std::as_bytes(std::span(length)),
                       std::as_writable_bytes(std::span(lengths)));
  std::vector<parallel::Range> ranges;
  int64_t end = 0;
  for (const int64_t some : lengths) {
    ranges.push_back({.first = end, .count = some});
    end += some;
  }
  std::vector<std::byte> whole(static_cast<size_t>(end));
  parallel::gather_slices(comm, {.ranges = ranges, .mine = mine, .whole = whole});
  std::vector<std::vector<std::byte>> parts;
  for (const parallel::Range& range : ranges) {
    const auto begin = whole.begin() + range.first;
    parts.emplace_back(begin, begin + range.count);
  }
  return parts;
}

}  // namespace

pruning::Competition make_competition(const StoreScope& scope, const std::vector<bool>& prunable) {
  std::vector<size_t> mine;
  for (const size_t number : scope.numbers) {
    if (prunable[number]) {
      mine.push_back(static_cast<size_t>(
          std::count(prunable.begin(), prunable.begin() + static_cast<int64_t>(number), true)));
    }
  }
  return make_competition(*scope.stages, static_cast<size_t>(std::ranges::count(prunable, true)),
                          std::move(mine));
}

pruning::Competition make_competition(parallel::Communicator& comm, size_t candidates,
                                      std::vector<size_t> mine) {
  return {.candidates = candidates,
          .mine = std::move(mine),
          .sum = [&comm](std::span<int64_t> counts) { sum_over(comm, counts); },
          .gather = [&comm](std::span<const std::byte> bytes) { return gather_from(comm, bytes); }};
}

}  // namespace espalier::train
