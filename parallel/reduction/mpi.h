#pragma once
// The sum of an array by the transport's own all-reduce (MPI_Iallreduce), for elements that travel
// as they are. In which order it adds is the library's affair; how many bytes it sends it does not
// tell, so 2 (p-1)/p n elements are counted. Its halves are those of sra.h.
#include "parallel/reduction/sra.h"

namespace espalier::parallel {

class MpiReduction final : public Reduction {
 public:
  MpiReduction(Communicator& comm, Arena& arena, const PieceOptions& options = {});

  /// Throws Failure when the wire changes elements, or the transport has no all-reduce.
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
