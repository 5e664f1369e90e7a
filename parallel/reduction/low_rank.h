#pragma once
// The sum of an array some of whose parts are matrices that travel as two thin factors
// (../low_rank.h); the rest goes by another reduction, with the job's wire.
//
// Two sums of factors follow each other, P of all matrices of the job and then Q, each one fp32
// array that sra.h sums, whatever reduction the rest has. The rest is copied together, so that
// nothing travels for the matrices' place in the array, and is under way meanwhile. A rank sends
//   2 (p-1)/p 4 r (m + n) bytes     for each matrix of m x n elements, and what the rest takes
// All ranks compute the whole sum of a matrix: with `Phases::scatter`, too, they hold all of it
// afterwards, and sends are not halved. A job without matrices is the other reduction's alone.
// Memory: 4 r (m + 2 n) bytes for each matrix of a job, and a copy of the rest.
#include <memory>

#include "parallel/low_rank.h"
#include "parallel/reduction/sra.h"

namespace espalier::parallel {

class LowRankReduction final : public Reduction {
 public:
  /// All must outlive it. `low_rank` numbers elements as the jobs' `first` does; all reductions of
  /// an array share it. `rest` works over `comm`.
  LowRankReduction(Communicator& comm, Arena& arena, LowRank& low_rank,
                   std::unique_ptr<Reduction> rest);

  /// Not for `Phases::gather`.
  void start(const SliceJob& job) override;
  Progress advance() override;
  std::vector<int> missing() const override;

 private:
  enum class Stage : uint8_t { none, p, q, summed };
  /// Where the factors of a matrix lie.
  struct Place {
    LowRankMatrix matrix;
    int64_t p = 0, q = 0;
  };

  void start_matrices();
  void start_rest(const SliceJob& job);
  void pack(const SliceJob& job);
  std::vector<WireSegment> packed_segments(std::span<const WireSegment> segments) const;
  int64_t packed(int64_t element) const;
  void copy_rest(const Tensor& flat, const Tensor& together, bool back) const;
  void finish_rest();
  void next();
  void sum_factors(const Tensor& factors);
  Tensor gradient_of(const LowRankMatrix& matrix) const;
  Tensor p_of(const Place& place) const;
  Tensor q_of(const Tensor& all, const Place& place) const;

  Communicator& comm_;
  Arena& arena_;
  LowRank& low_rank_;
  SraReduction factors_;
  std::unique_ptr<Reduction> rest_;
  Wire rest_wire_;        ///< of the rest as it lies together
  bool resting_ = false;  ///< the rest is under way
  Stage stage_ = Stage::none;
  Tensor data_;
  int64_t first_ = 0;
  int number_ = 0;
  Wire* wire_ = nullptr;
  std::vector<Place> places_;
  int64_t p_size_ = 0, q_size_ = 0;
  Buffer p_, q_, minus_q_;    ///< fp32 factors of all matrices of a job
  std::vector<Range> apart_;  ///< the rest, from data_'s first element
  int64_t rest_count_ = 0;
  Buffer together_, feedback_;  ///< the rest, and its e
};

}  // namespace espalier::parallel
