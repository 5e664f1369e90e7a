#pragma once
// The sum of an array that contains matrices sent as two thin factors (job.h); another reduction
// sums the rest, with the job's wire.
//
// Two sums of factors follow each other: P of all matrices of the job, then Q. Each is one fp32
// array that sra.h sums, whatever reduction the rest uses. The rest is in flight meanwhile. A rank
// sends
//   2 (p-1)/p 4 r (m + n) bytes     for each matrix of m x n elements, and the bytes of the rest
// All ranks compute the whole sum of a matrix. So with `Phases::scatter` they also hold all of it,
// and the sent bytes are not halved. The other reduction alone runs a job without matrices.
#include <memory>

#include "parallel/reduction/powersgd/job.h"
#include "parallel/reduction/sra.h"

namespace espalier::parallel {

class LowRankReduction final : public Reduction {
 public:
  /// All must outlive it. `rest` communicates over `comm`.
  LowRankReduction(Communicator& comm, Arena& arena, LowRank& low_rank,
                   std::unique_ptr<Reduction> rest);

  /// Not for `Phases::gather`.
  void start(const SliceJob& job) override;
  Progress advance() override;
  std::vector<int> missing() const override;

 private:
  enum class Stage : uint8_t { none, p, q, summed };

  void next();
  void sum_factors(const Tensor& factors);

  Communicator& comm_;
  LowRankJob job_;
  SraReduction factors_;
  std::unique_ptr<Reduction> rest_;
  bool resting_ = false;  ///< the rest is in flight
  Stage stage_ = Stage::none;
  int number_ = 0;
};

}  // namespace espalier::parallel
