#pragma once
// The sum of an array in two levels: not encoded within each machine, encoded between machines.
//
// k = the fewest ranks on any machine.
//   1. The ranks of a machine scatter: its first k ranks each get the machine's sum of one of k
//      slices.
//   2. Ranks with the same local rank on all machines sum their slices over the slow links (sra.h,
//      with the job's wire).
//   3. They send the sums to the ranks of their machine (gather).
//
// Between two machines with L ranks each, 2 (m-1)/m n / k elements leave each rank instead of 2
// (p-1)/p n. A value is encoded at most twice, for any number of ranks per machine. Machines may
// differ in ranks. On one machine only the scatter and the gather run. The halves are those of
// sra.h over all ranks. Source: CGX, Middleware 2022, section 4 (each local rank reduces with its
// peers on other machines).
#include <memory>

#include "parallel/reduction/sra.h"

namespace espalier::parallel {

class HierarchicalReduction final : public Reduction {
 public:
  /// Collective.
  HierarchicalReduction(Communicator& comm, Arena& arena, const PieceOptions& options = {});

  void start(const SliceJob& job) override;
  Progress advance() override;
  std::vector<int> missing() const override;

 private:
  enum class Stage : uint8_t { none, halves, scatter, across, gather };

  bool owns() const { return node_->rank() < owners_; }
  SliceJob slice() const;
  void next();

  Communicator& comm_;
  std::unique_ptr<Communicator> node_;    ///< the ranks of this machine
  std::unique_ptr<Communicator> across_;  ///< the ranks with this local rank on all machines
  int owners_ = 1;                        ///< k
  SraReduction halves_;
  std::unique_ptr<SraReduction> within_, between_;
  Stage stage_ = Stage::none;
  SliceJob job_;
  std::vector<int64_t> edges_;  ///< [ranks of this machine + 1]; ranks from k on own nothing
};

}  // namespace espalier::parallel
