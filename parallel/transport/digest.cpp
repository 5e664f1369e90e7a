#include "parallel/transport/digest.h"

#include <algorithm>
#include <utility>

#include "parallel/transport/collectives.h"
#include "src/core/rng.h"

namespace espalier::parallel {

namespace {

struct Summary {
  uint64_t combined = 0;
  uint64_t count = 0;
  bool operator==(const Summary&) const = default;
};

template <class T>
std::vector<T> gather_all(Communicator& comm, std::span<const T> mine) {
  std::vector<T> all(mine.size() * static_cast<size_t>(comm.size()));
  all_gather(comm, std::as_bytes(mine), std::as_writable_bytes(std::span(all)));
  return all;
}

/// Ranks whose value differs from the most common value (ties: the lowest rank's value).
template <class Value>
std::vector<int> minority(int ranks, const Value& value) {
  int best = 0;
  int best_votes = 0;
  for (int r = 0; r < ranks; ++r) {
    int votes = 0;
    for (int other = 0; other < ranks; ++other) {
      votes += value(other) == value(r) ? 1 : 0;
    }
    if (votes > best_votes) {
      best = r;
      best_votes = votes;
    }
  }
  std::vector<int> differing;
  for (int r = 0; r < ranks; ++r) {
    if (value(r) != value(best)) {
      differing.push_back(r);
    }
  }
  return differing;
}

}  // namespace

void compare_digests(Communicator& comm, std::span<const std::string> names,
                     std::span<const uint64_t> digests) {
  require(names.size() == digests.size(), "one name a digest", names.size(), digests.size());
  Summary mine{.combined = 0, .count = digests.size()};
  for (const uint64_t digest : digests) {
    mine.combined = mix(mine.combined, digest);
  }
  const auto summaries = gather_all<Summary>(comm, std::span<const Summary>(&mine, 1));
  if (std::ranges::count(summaries, mine) == comm.size()) {
    return;
  }
  const auto by_count = minority(comm.size(), [&](int r) { return summaries[r].count; });
  check(by_count.empty(),
        "ranks hold different numbers of parameters (not the same on rank {}); start all ranks "
        "with the same program and config",
        fmt::join(by_count, ", "));
  const auto [entry, ranks] = first_difference(comm, digests);
  require(entry >= 0, "digests differ where their combination does");
  // A retry resumes all ranks from one checkpoint.
  throw Failure(
      fmt::format("ranks hold different bits of '{}' (not the same on rank {}): the run can no "
                  "longer be trusted; resume all ranks from the last checkpoint",
                  names[static_cast<size_t>(entry)], fmt::join(ranks, ", ")),
      true);
}

DigestDifference first_difference(Communicator& comm, std::span<const uint64_t> digests) {
  const auto all = gather_all<uint64_t>(comm, digests);
  for (size_t i = 0; i < digests.size(); ++i) {
    auto differing = minority(
        comm.size(), [&](int r) { return all[static_cast<size_t>(r) * digests.size() + i]; });
    if (!differing.empty()) {
      return {.entry = static_cast<int64_t>(i), .ranks = std::move(differing)};
    }
  }
  return {};
}

}  // namespace espalier::parallel
