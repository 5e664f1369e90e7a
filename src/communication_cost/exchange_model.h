#pragma once
// What a data-parallel step of ours takes when gradients travel in buckets under the backward pass
// that makes them, encoded or not. p ranks, each with a processor that computes, encodes and
// decodes, and a link. A bucket of n values and b encoded bytes costs a rank
//
//   reduction   link         latencies  values encoded  values decoded
//   sra         2 (p-1)/p b  2          n               (2p-1)/p n      scatter, sum, gather
//   ring        2 (p-1)/p b  2 (p-1)    n               (2p-1)/p n      encodes each partial sum
//   all-to-all  (p-1) b      1          n               p n             decodes its own code, too
//
// and nothing on one rank. Processor: forward; backward, in which each bucket is encoded when it is
// ready; then decoding in order. Link: one bucket after the other. In a bucket the three overlap by
// pieces, so with e, x, d = the time of its encoding, link and decoding, k pieces, B = when its
// encoding begins, L = when the link is free:
//
//   first piece across   f = max(L, B + e/k) + x/k + latencies
//   all across           l = max(L + x, B + e/k + x, B + e + x/k) + latencies
//   decoded              D = max(D' + d, f + d, l + d/k)
//
// where D' is that of the bucket before, for the first one the end of backward.
// Exact for that machine; a maximum of sums, so nothing gets slower by a faster part. Latency
// delays a message, but does not occupy the link. What sra decodes between its two halves is
// counted after both. All times in seconds. Cost: O(buckets). Failure for times and rates that no
// machine has.
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "src/communication_cost/link.h"

namespace espalier::cost {

enum class ReductionKind : uint8_t { sra, ring, all_to_all };
/// "sra", "ring", "all-to-all"; Failure for others.
ReductionKind reduction_by_name(std::string_view name);

/// What a rank does for a bucket, as multiples of its bytes, a latency and its values.
struct ReductionCost {
  double link = 0;
  double latencies = 0;
  double encoded = 0;
  double decoded = 0;
};
ReductionCost cost_of(ReductionKind reduction, int ranks);

/// A slice of the gradient that is reduced at once.
struct GradientBucket {
  double ready_s = 0;  ///< after backward began, had it nothing to encode; ascending
  int64_t values = 0;
  double bytes = 0;  ///< of all its values, encoded
};

/// The gradient in buckets of `bucket_values` (the last may be smaller), ready one after the other
/// as backward goes on evenly; at its end if not `overlap`.
struct EvenBuckets {
  int64_t values = 0;
  int64_t bucket_values = int64_t{1} << 20U;
  double backward_s = 0;
  bool overlap = true;
};
/// `bytes`: of a message of so many values.
std::vector<GradientBucket> cut(const EvenBuckets& gradient,
                                const std::function<double(int64_t values)>& bytes);

/// What each rank computes in a step, without a codec.
struct ComputeTimes {
  double forward_s = 0;    ///< all before the last backward: also earlier micro-batches
  double backward_s = 0;   ///< of the last micro-batch, under which gradients travel
  double optimizer_s = 0;  ///< all after the gradient's sum
};

struct ExchangeModel {
  int ranks = 2;
  ReductionKind reduction = ReductionKind::sra;
  Link link = {};
  double encode_per_s = std::numeric_limits<double>::infinity();  ///< values
  double decode_per_s = std::numeric_limits<double>::infinity();  ///< values, added to a sum
  int pieces = 16;                                                ///< of a bucket
};

struct ExchangePrediction {
  double step_s = 0;
  double exposed_s = 0;  ///< step less computing: codec and waiting
  double codec_s = 0;    ///< encoding and decoding
  double waiting_s = 0;  ///< the processor waits for the link
  double link_s = 0;     ///< the link is occupied
  double bytes = 0;      ///< a rank sends
  double speedup = 0;    ///< p ranks with p times the samples, over one rank
};

ExchangePrediction predict(const ComputeTimes& compute, std::span<const GradientBucket> buckets,
                           const ExchangeModel& model);

}  // namespace espalier::cost
