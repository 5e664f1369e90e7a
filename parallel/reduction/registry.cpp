#include "parallel/reduction/registry.h"

#include <algorithm>

#include "parallel/reduction/all_to_all.h"
#include "parallel/reduction/hierarchical.h"
#include "parallel/reduction/mpi.h"
#include "parallel/reduction/ring.h"
#include "parallel/reduction/sra.h"

namespace espalier::parallel {
namespace {

template <class Kind>
std::unique_ptr<Reduction> make(Communicator& comm, Arena& arena, const PieceOptions& options) {
  return std::make_unique<Kind>(comm, arena, options);
}

constexpr ReductionEntry kSra{.name = "sra",
                              .help = "scatter, sum in rank order, gather",
                              .on_device = true,
                              .make = make<SraReduction>};
constexpr ReductionEntry kRing{
    .name = "ring", .help = "partial sums around a ring", .make = make<RingReduction>};
constexpr ReductionEntry kAllToAll{.name = "all-to-all",
                                   .help = "each rank sends all of its array to all",
                                   .make = make<AllToAllReduction>};
constexpr ReductionEntry kHierarchical{.name = "hierarchical",
                                       .help = "sra within machines, then between them",
                                       .make = make<HierarchicalReduction>};
constexpr ReductionEntry kMpi{.name = "mpi",
                              .help = "MPI's all-reduce, without codecs",
                              .takes_codecs = false,
                              .make = make<MpiReduction>};
constexpr ReductionEntry kNccl{.name = "nccl",
                               .help = "NCCL's all-reduce between GPUs, without codecs",
                               .takes_codecs = false,
                               .on_device = true};
constexpr const ReductionEntry* kAll[] = {&kSra, &kRing, &kAllToAll, &kHierarchical, &kMpi, &kNccl};

}  // namespace

Registry<ReductionEntry> reductions() { return kAll; }

std::unique_ptr<Reduction> make_reduction(std::string_view name, Communicator& comm, Arena& arena,
                                          const PieceOptions& options) {
  const ReductionEntry& entry = find(reductions(), "reduction", name);
  check(entry.make != nullptr, "reduction \"{}\" sums between GPUs only", name);
  return entry.make(comm, arena, options);
}

std::string_view best_reduction(const Membership& members) {
  const int machines = *std::ranges::max_element(members.node) + 1;
  const auto ranks = static_cast<int>(members.node.size());
  return machines > 1 && ranks > machines ? "hierarchical" : "sra";
}

}  // namespace espalier::parallel
