#pragma once
// The sum of an array that contains matrices sent as two thin factors, independent of the
// transport: messages between hosts (reduction.h) or devices (device.h). Kernels run on the
// LowRank's stream, which owns all memory.
//
//   job.begin(slices);           false: no matrices, another reduction sums the array
//   job.project();               then sum job.p() over ranks
//   job.project_back();          then sum job.q() over ranks
//   job.keep_rest();             during that sum or after it
//   job.finish();                after that sum
//   job.pack_rest();             returns the rest to be summed
//   job.unpack_rest();           after the sum of the rest
//
// The factors of all matrices form one fp32 array each. The rest is copied to contiguous memory, so
// that the matrices' elements are not sent. Memory: 4 r (m + 2 n) bytes for each matrix of a job,
// and a copy of the rest; it grows with the largest job so far.
#include <optional>

#include "parallel/reduction/powersgd/factors.h"
#include "parallel/reduction/reduction.h"

namespace espalier::parallel {

class LowRankJob {
 public:
  /// `low_rank` must outlive it; it numbers elements as the jobs' `first` does. All jobs of an
  /// array share it.
  explicit LowRankJob(LowRank& low_rank)
      : low_rank_(low_rank), rest_wire_(low_rank.kernels(), low_rank.stream()) {}

  /// Releases elements that no longer belong to a matrix. Not for `Phases::gather`.
  bool begin(const SliceJob& job);
  void project();
  Tensor p() const { return p_.tensor().elements(0, p_size_); }
  void project_back();
  Tensor q() const { return q_.tensor().elements(0, q_size_); }
  void keep_rest();
  void finish();

  /// Empty: nothing of the rest is sent. The job's references are valid until the next job.
  std::optional<SliceJob> pack_rest();
  /// No effect without a rest.
  void unpack_rest();

 private:
  /// Positions of a matrix's factors.
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
  SliceJob job_;  ///< without its edges
  std::vector<Place> places_;
  int64_t p_size_ = 0, q_size_ = 0;
  Buffer p_, q_, minus_q_;    ///< fp32 factors of all matrices of a job
  Wire rest_wire_;            ///< of the packed rest
  std::vector<Range> apart_;  ///< the rest, from the data's first element
  int64_t rest_count_ = 0;
  std::vector<int64_t> edges_;  ///< of the rest
  Buffer together_, feedback_;  ///< the packed rest, and its e
};

}  // namespace espalier::parallel
