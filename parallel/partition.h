#pragma once
// Partition of the flat array for ZeRO-1: into buckets of whole parameters, and each bucket into
// one slice a rank. Pure arithmetic on data that all ranks share; any number of ranks, any sizes.
//
//   buckets   ends[b], each at a parameter's begin or the array's end; at least `bucket_bytes` long
//             except the last
//   slices    edges_of(b): rank r owns flat elements [edges[r], edges[r + 1]); together they cover
//             the bucket, padding included. A slice differs from bucket / ranks by at most
//             one block (and the padding). With fewer blocks than ranks, some slices are empty.
//
// An edge inside a parameter lies a multiple of `block` kept elements after the parameter's begin,
// so that the blocks of 8-bit optimizer states stay whole. A parameter lies in one bucket, so a
// rank owns at most one contiguous range of it. Slices are cut per bucket so that each can be
// reduced while backward still runs. Source: Rajbhandari et al., "ZeRO", SC 2020, section 5.1
// (P_os).
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/core/range.h"

namespace espalier::parallel {

/// A parameter's kept elements: [offset, offset + kept) of the flat array.
struct FlatParameter {
  int64_t offset = 0;
  int64_t kept = 0;
};

inline constexpr size_t kBucketBytes = size_t{4} << 20U;

struct PartitionOptions {
  int ranks = 1;
  size_t bucket_bytes = kBucketBytes;  ///< 0: usual_bucket_bytes
  size_t element_bytes = 4;            ///< of the gradient
  int64_t block = 256;                 ///< kept elements that are never split
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
  /// The part of a parameter that `rank` owns, in kept elements from the parameter's begin; {0, 0}:
  /// none.
  Range owned(const FlatParameter& parameter, int rank) const;
};

/// `parameters` in flat order (ascending offsets, not overlapping) within `total` elements.
Partition make_partition(std::span<const FlatParameter> parameters, int64_t total,
                         const PartitionOptions& options);

/// Bucket size for a gradient of this many bytes: a 16th of it, 64 KiB … 4 MiB. Small enough that
/// most buckets are sent during backward, large enough that latency is negligible.
size_t usual_bucket_bytes(size_t gradient_bytes);

/// Ends of the buckets: the ascending `boundaries` that lie at least `least` elements after the
/// previous end, and `total`. Empty when `total` is 0.
std::vector<int64_t> cut_buckets(std::span<const int64_t> boundaries, int64_t total, int64_t least);

}  // namespace espalier::parallel
