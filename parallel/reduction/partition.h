#pragma once
// How the flat array is cut for ZeRO-1: into buckets of whole parameters, and each bucket into one
// slice a rank. Pure arithmetic on what all ranks know; any number of ranks, any sizes.
//
//   buckets   ends[b], each at a parameter's begin or the array's end, at least `bucket_bytes` long
//             but for the last
//   slices    edges_of(b): rank r owns flat elements [edges[r], edges[r + 1]); together they cover
//             the bucket, padding included. A slice is within one block (and the padding) of
//             bucket / ranks; where there are fewer blocks than ranks, some are empty.
//
// An edge inside a parameter lies a multiple of `block` kept elements after the parameter's begin,
// so that the blocks of 8-bit optimizer states stay whole. A parameter lies in one bucket: a rank
// owns at most one contiguous range of it. Source: Rajbhandari et al., "ZeRO", SC 2020, section 5.1
// (P_os); the slices follow buckets so that each can be reduced while backward still runs.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace espalier::parallel {

/// Elements (or bytes) [first, first + count).
struct Range {
  int64_t first = 0;
  int64_t count = 0;
  int64_t end() const { return first + count; }
  bool operator==(const Range&) const = default;
};

/// A parameter's kept elements: [offset, offset + kept) of the flat array.
struct FlatParameter {
  int64_t offset = 0;
  int64_t kept = 0;
};

struct PartitionOptions {
  int ranks = 1;
  size_t bucket_bytes = size_t{4} << 20U;  ///< 0: usual_bucket_bytes
  size_t element_bytes = 4;                ///< of the gradient
  int64_t block = 256;                     ///< kept elements that must not be parted
};

struct Partition {
  int ranks = 1;
  std::vector<int64_t> ends;   ///< of the buckets, ascending
  std::vector<int64_t> edges;  ///< of the slices, [bucket][ranks + 1]

  size_t buckets() const { return ends.size(); }
  /// [ranks + 1], in elements of the flat array.
  std::span<const int64_t> edges_of(size_t bucket) const;
  Range slice(size_t bucket, int rank) const;
  /// The bucket of a flat element.
  size_t bucket_of(int64_t element) const;
  /// What `rank` owns of a parameter, in kept elements from the parameter's begin; {0, 0}: nothing.
  Range owned(const FlatParameter& parameter, int rank) const;
  /// That of each parameter.
  std::vector<Range> owned(std::span<const FlatParameter> parameters, int rank) const;
};

/// `parameters` in flat order (ascending offsets, not overlapping) within `total` elements.
Partition make_partition(std::span<const FlatParameter> parameters, int64_t total,
                         const PartitionOptions& options);

/// For a gradient of so many bytes: small enough that most buckets travel while backward goes on,
/// long enough that latency does not count. A 16th of it, 64 KiB … 4 MiB.
size_t usual_bucket_bytes(size_t gradient_bytes);

/// Ends of the buckets: those of the ascending `boundaries` that are at least `least` elements
/// after the end before them, and `total`. Empty when `total` is 0.
std::vector<int64_t> cut_buckets(std::span<const int64_t> boundaries, int64_t total, int64_t least);

}  // namespace espalier::parallel
