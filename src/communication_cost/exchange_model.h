#pragma once
// Predicts the time of a data-parallel step of Espalier. Gradients are sent in buckets during the
// backward pass that computes them, encoded or not. There are p ranks; each has a link, and a
// processor that computes, encodes and decodes. A bucket of n values and b encoded bytes costs a
// rank
//
//   reduction   link         latencies  values encoded  values decoded
//   sra         2 (p-1)/p b  2          n               (2p-1)/p n      scatter, sum, gather
//   ring        2 (p-1)/p b  2 (p-1)    n               (2p-1)/p n      encodes each partial sum
//   all-to-all  (p-1) b      1          n               p n             decodes its own code, too
//
// and nothing with one rank. Processor: forward; backward, in which each bucket is encoded when it
// is ready; then decoding in order. Link: one bucket after the other. Within a bucket the three
// overlap in k pieces. With e, x, d = the time of its encoding, link and decoding, B = the begin of
// its encoding, and L = the time at which the link is free:
//
//   first piece across   f = max(L, B + e/k) + x/k + latencies
//   all across           l = max(L + x, B + e/k + x, B + e + x/k) + latencies
//   decoded              D = max(D' + d, f + d, l + d/k)
//
// where D' is D of the previous bucket; for the first bucket, the end of backward.
//
// The formulas are exact for this machine. They are maxima of sums, so a faster part never makes a
// step slower. Latency delays a message but does not occupy the link. Decoding between the two
// halves of sra is counted after both. All times in seconds. Cost: O(buckets). Failure for times
// and rates out of range.
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "src/communication_cost/link.h"

namespace espalier::cost {

/// The work of a rank for a bucket, as multiples of its bytes (link), a latency, and its values.
struct ReductionCost {
  double link = 0;
  double latencies = 0;
  double encoded = 0;
  double decoded = 0;
};
/// `reduction`: "sra", "ring" or "all-to-all"; throws Failure for other names.
ReductionCost cost_of(std::string_view reduction, int ranks);

/// A slice of the gradient that is reduced by one collective.
struct GradientBucket {
  double ready_s = 0;  ///< since backward began, without the time of encoding; ascending
  int64_t values = 0;
  double bytes = 0;  ///< of all its encoded values
};

/// A gradient cut into buckets of `bucket_values` (the last may be smaller). They become ready at
/// even intervals of backward; without `overlap`, all at its end.
struct EvenBuckets {
  int64_t values = 0;
  int64_t bucket_values = int64_t{1} << 20U;
  double backward_s = 0;
  bool overlap = true;
};
/// `bytes(values)`: size of a message of `values` values.
std::vector<GradientBucket> cut(const EvenBuckets& gradient,
                                const std::function<double(int64_t values)>& bytes);

/// Computing times of a rank in a step, without a codec.
struct ComputeTimes {
  double forward_s = 0;    ///< everything before the last backward, including earlier micro-batches
  double backward_s = 0;   ///< of the last micro-batch, which overlaps with sending
  double optimizer_s = 0;  ///< everything after the reduction
};

struct ExchangeModel {
  int ranks = 2;
  std::string_view reduction = "sra";
  Link link = {};
  double encode_per_s = std::numeric_limits<double>::infinity();  ///< values
  double decode_per_s = std::numeric_limits<double>::infinity();  ///< values, added to a sum
  int pieces = 16;                                                ///< of a bucket
};

struct ExchangePrediction {
  double step_s = 0;
  double exposed_s = 0;  ///< step minus computing: codec and waiting
  double codec_s = 0;    ///< encoding and decoding
  double waiting_s = 0;  ///< the processor waits for the link
  double link_s = 0;     ///< the link is occupied
  double bytes = 0;      ///< sent by a rank
  double speedup = 0;    ///< p ranks with p times the samples, relative to one rank
};

ExchangePrediction predict(const ComputeTimes& compute, std::span<const GradientBucket> buckets,
                           const ExchangeModel& model);

}  // namespace espalier::cost
