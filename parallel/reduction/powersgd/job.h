#pragma once
// The sum of an array some of whose parts are matrices that travel as two thin factors
// (reduction.h), but for what sums: the host's messages (reduction.h) or those of devices
// (device.h). Kernels are asked for on the LowRank's stream, where all memory is.
//
//   job.begin(slices);           false: no matrices, the sum is another reduction's
//   job.project();               job.p() is to be summed over ranks, then
//   job.project_back();          job.q() is; meanwhile, or behind it,
//   job.keep_rest();             and when it has been
//   job.finish();
//   job.pack_rest();             what is to be summed of the rest; when it has been
//   job.unpack_rest();
//
// The factors of all matrices are one fp32 array each. The rest is copied together, so that nothing
// travels for the matrices' place in the array. Memory: 4 r (m + 2 n) bytes for each matrix of a
// job, and a copy of the rest; it grows with the largest job so far.
#include <optional>

#include "parallel/reduction/powersgd/factors.h"
#include "parallel/reduction/reduction.h"

namespace espalier::parallel {

class LowRankJob {
 public:
  /// Must outlive it; numbers elements as the jobs' `first` does. All jobs of an array share it.
  explicit LowRankJob(LowRank& low_rank)
      : low_rank_(low_rank), rest_wire_(low_rank.kernels(), low_rank.stream()) {}

  /// Releases what no longer is a matrix. Not for `Phases::gather`.
  bool begin(const SliceJob& job);
  void project();
  Tensor p() const { return p_.tensor().elements(0, p_size_); }
  void project_back();
  Tensor q() const { return q_.tensor().elements(0, q_size_); }
  void keep_rest();
  void finish();

  /// Empty: none of it is to travel. What it refers to is good until the next job.
  std::optional<SliceJob> pack_rest();
  /// Nothing where there was none.
  void unpack_rest();

 private:
  /// Where the factors of a matrix lie.
  struct Place {
    LowRankMatrix matrix;
    int64_t p = 0, q = 0;
  };

  Tensor gradient_of(const LowRankMatrix& matrix) const;
  Tensor p_of(const Place& place) const;
  Tensor q_of(const Tensor& all, const Place& place) const;
  void find_rest();
  void pack_wire();
  int64_t packed(int64_t element) const;
  std::vector<WireSegment> packed_segments() const;
  void copy_rest(const Tensor& flat, const Tensor& together, bool back) const;

  LowRank& low_rank_;
  SliceJob job_;  ///< but for its edges
  std::vector<Place> places_;
  int64_t p_size_ = 0, q_size_ = 0;
  Buffer p_, q_, minus_q_;    ///< fp32 factors of all matrices of a job
  Wire rest_wire_;            ///< of the rest as it lies together
  std::vector<Range> apart_;  ///< the rest, from the data's first element
  int64_t rest_count_ = 0;
  std::vector<int64_t> edges_;  ///< of the rest
  Buffer together_, feedback_;  ///< the rest, and its e
};

}  // namespace espalier::parallel
