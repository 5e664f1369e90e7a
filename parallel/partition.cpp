#include "parallel/partition.h"

#include <algorithm>

#include "src/core/error.h"

namespace espalier::parallel {

namespace {

/// Positions where a bucket may be cut: its parameters' begins, and whole blocks inside parameters.
class Cuts {
 public:
  Cuts(std::span<const FlatParameter> parameters, int64_t block)
      : parameters_(parameters), block_(block) {}

  /// The cut nearest to `target` in [begin, end); both ends count as cuts. Non-decreasing in
  /// `target`.
  int64_t nearest(int64_t target, int64_t begin, int64_t end) const {
    const auto after = std::ranges::upper_bound(parameters_, target, {}, &FlatParameter::offset);
    int64_t low = begin;
    int64_t high = after == parameters_.end() ? end : std::min(end, after->offset);
    if (after != parameters_.begin() && std::prev(after)->offset >= begin) {
      const FlatParameter& parameter = *std::prev(after);
      const int64_t blocks = (parameter.kept + block_ - 1) / block_;
      const int64_t last = std::max<int64_t>(0, blocks - 1);
      const int64_t at = std::min((target - parameter.offset) / block_, last);
      low = parameter.offset + at * block_;
      high = at < last ? low + block_ : high;
    }
    return target - low <= high - target ? low : high;
  }

 private:
  std::span<const FlatParameter> parameters_;
  int64_t block_;
};

void check_order(std::span<const FlatParameter> parameters, int64_t total) {
  int64_t end = 0;
  for (const FlatParameter& parameter : parameters) {
    require(parameter.offset >= end && parameter.kept >= 0, "parameters in flat order",
            parameter.offset, parameter.kept, end);
    end = parameter.offset + parameter.kept;
  }
  require(end <= total, "parameters within the flat array", end, total);
}

}  // namespace

std::span<const int64_t> Partition::edges_of(size_t bucket) const {
  const auto width = static_cast<size_t>(ranks) + 1;
  return std::span(edges).subspan(bucket * width, width);
}

Range Partition::slice(size_t bucket, int rank) const {
  const auto at = edges_of(bucket).subspan(static_cast<size_t>(rank), 2);
  return {.first = at[0], .count = at[1] - at[0]};
}

size_t Partition::bucket_of(int64_t element) const {
  const auto found = std::ranges::upper_bound(ends, element);
  require(element >= 0 && found != ends.end(), "an element of the flat array", element);
  return static_cast<size_t>(found - ends.begin());
}

Range Partition::owned(const FlatParameter& parameter, int rank) const {
  if (parameter.kept == 0) {
    return {};
  }
  const Range mine = slice(bucket_of(parameter.offset), rank);
  const int64_t first = std::max(mine.first - parameter.offset, int64_t{0});
  const int64_t end = std::min(mine.end() - parameter.offset, parameter.kept);
  return end > first ? Range{.first = first, .count = end - first} : Range{};
}

Partition make_partition(std::span<const FlatParameter> parameters, int64_t total,
                         const PartitionOptions& options) {
  require(options.ranks >= 1 && options.block >= 1 && options.element_bytes >= 1,
          "at least one rank, element and byte", options.ranks, options.block,
          options.element_bytes);
  check_order(parameters, total);
  std::vector<int64_t> begins;
  begins.reserve(parameters.size());
  for (const FlatParameter& parameter : parameters) {
    begins.push_back(parameter.offset);
  }
  Partition partition;
  partition.ranks = options.ranks;
  const size_t bytes = options.bucket_bytes > 0
                           ? options.bucket_bytes
                           : usual_bucket_bytes(static_cast<size_t>(total) * options.element_bytes);
  partition.ends = cut_buckets(begins, total, static_cast<int64_t>(bytes / options.element_bytes));
  const Cuts cuts(parameters, options.block);
  int64_t begin = 0;
  for (const int64_t end : partition.ends) {
    partition.edges.push_back(begin);
    for (int rank = 1; rank < options.ranks; ++rank) {
      const int64_t target = begin + (end - begin) * rank / options.ranks;
      partition.edges.push_back(cuts.nearest(target, begin, end));
    }
    partition.edges.push_back(end);
    begin = end;
  }
  return partition;
}

size_t usual_bucket_bytes(size_t gradient_bytes) {
  return std::clamp(gradient_bytes / 16, size_t{64} << 10U, size_t{4} << 20U);
}

std::vector<int64_t> cut_buckets(std::span<const int64_t> boundaries, int64_t total,
                                 int64_t least) {
  std::vector<int64_t> ends;
  if (total == 0) {
    return ends;
  }
  int64_t cut = 0;
  int64_t previous = 0;
  for (const int64_t end : boundaries) {
    require(end >= previous && end <= total, "boundaries ascend within the gradient", end, previous,
            total);
    previous = end;
    if (end < total && end > cut && end - cut >= least) {
      ends.push_back(end);
      cut = end;
    }
  }
  ends.push_back(total);
  return ends;
}

}  // namespace espalier::parallel
