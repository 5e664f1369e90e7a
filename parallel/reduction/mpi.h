#pragma once
// The sum of an array by the transport's own all-reduce (MPI_Iallreduce), for elements that are not
// encoded. The library chooses the order of the sum. It does not report its sent bytes, so 2
// (p-1)/p n elements are counted. The halves are those of sra.h.
#include "parallel/reduction/sra.h"

namespace espalier::parallel {

class MpiReduction final : public Reduction {
 public:
  MpiReduction(Communicator& comm, Arena& arena, const PieceOptions& options = {});

  /// Throws Failure if the wire changes elements, or if the transport has no all-reduce.
  void start(const SliceJob& job) override;
  Progress advance() override;
  std::vector<int> missing() const override;

 private:
  Communicator& comm_;
  SraReduction halves_;
  bool half_ = false;
  Request request_;
};

}  // namespace espalier::parallel
