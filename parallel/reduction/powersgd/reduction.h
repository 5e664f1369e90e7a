#pragma once
// The sum of an array some of whose parts are matrices that travel as two thin factors
// (job.h); the rest goes by another reduction, with the job's wire.
//
// Two sums of factors follow each other, P of all matrices of the job and then Q, each one fp32
// array that sra.h sums, whatever reduction the rest has. The rest is under way meanwhile. A rank
// sends
//   2 (p-1)/p 4 r (m + n) bytes     for each matrix of m x n elements, and what the rest takes
// All ranks compute the whole sum of a matrix: with `Phases::scatter`, too, they hold all of it
// afterwards, and sends are not halved. A job without matrices is the other reduction's alone.
#include <memory>

#include "parallel/reduction/powersgd/job.h"
#include "parallel/reduction/sra.h"

namespace espalier::parallel {

class LowRankReduction final : public Reduction {
 public:
  /// All must outlive it. `rest` works over `comm`.
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
  bool resting_ = false;  ///< the rest is under way
  Stage stage_ = Stage::none;
  int number_ = 0;
};

}  // namespace espalier::parallel
