#include "parallel/reduction/by_name.h"

#include <algorithm>

#include "parallel/reduction/all_to_all.h"
#include "parallel/reduction/hierarchical.h"
#include "parallel/reduction/mpi.h"
#include "parallel/reduction/ring.h"
#include "parallel/reduction/sra.h"

namespace espalier::parallel {

std::unique_ptr<Reduction> make_reduction(std::string_view name, Communicator& comm, Arena& arena,
                                          const PieceOptions& options) {
  if (name == "sra") {
    return std::make_unique<SraReduction>(comm, arena, options);
  }
  if (name == "ring") {
    return std::make_unique<RingReduction>(comm, arena, options);
  }
  if (name == "all-to-all") {
    return std::make_unique<AllToAllReduction>(comm, arena, options);
  }
  if (name == "hierarchical") {
    return std::make_unique<HierarchicalReduction>(comm, arena, options);
  }
  if (name == "mpi") {
    return std::make_unique<MpiReduction>(comm, arena, options);
  }
  fail("no reduction \"{}\"; there are sra, ring, all-to-all, hierarchical and mpi", name);
}

std::string_view best_reduction(const Membership& members) {
  const int machines = *std::ranges::max_element(members.node) + 1;
  const auto ranks = static_cast<int>(members.node.size());
  return machines > 1 && ranks > machines ? "hierarchical" : "sra";
}

}  // namespace espalier::parallel
