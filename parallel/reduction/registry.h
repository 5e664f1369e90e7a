#pragma once
// The registry behind `parallel.reduction`. p ranks, n elements:
//
//   sra           2 steps         2 (p-1)/p n sent; a contribution and a sum are encoded once each
//   ring          2 (p-1) steps   2 (p-1)/p n sent, to one neighbour; partial sums encoded p times
//   all-to-all    1 step          (p-1) n sent; a contribution loses precision once, the sum never
//   hierarchical  sra within machines (not encoded), between them, and within them again
//   mpi           MPI's own all-reduce, without codecs
//   nccl          NCCL's own all-reduce between GPUs, without codecs
#include <memory>
#include <string_view>

#include "parallel/reduction/reduction.h"
#include "parallel/reduction/sra.h"
#include "src/core/registry.h"

namespace espalier::parallel {

struct ReductionEntry {
  std::string_view name;
  std::string_view help;
  bool takes_codecs = true;
  /// Sums between GPUs (device/reduction.h).
  bool on_device = false;
  /// Adds the ranks' elements in an order that does not depend on their place in the array.
  bool in_rank_order = true;
  /// Collective. Null: only between GPUs.
  std::unique_ptr<Reduction> (*make)(Communicator&, Arena&, const PieceOptions&) = nullptr;
};
Registry<ReductionEntry> reductions();

/// For `ReductionEntry::make`: a kind that runs all phases, and one that runs whole sums only.
template <class Kind>
std::unique_ptr<Reduction> make_kind(Communicator& comm, Arena& arena,
                                     const PieceOptions& options) {
  return std::make_unique<Kind>(comm, arena, options);
}
template <class Kind>
std::unique_ptr<Reduction> make_with_sra_halves(Communicator& comm, Arena& arena,
                                                const PieceOptions& options) {
  return with_sra_halves(comm, arena, options, make_kind<Kind>(comm, arena, options));
}

/// Collective. Throws Failure that lists the names.
std::unique_ptr<Reduction> make_reduction(std::string_view name, Communicator& comm, Arena& arena,
                                          const PieceOptions& options = {});

/// The reduction that parallel.reduction selects for these ranks. "auto": "hierarchical" where
/// several machines have several ranks each, else "sra".
std::string_view reduction_for(std::string_view wanted, const Membership& members);

}  // namespace espalier::parallel
