#include "parallel/reduction/registry.h"

#include <algorithm>

#include "parallel/flat.h"
#include "parallel/reduction/sra.h"

namespace espalier::parallel {
namespace {

/// The sum of an array by the transport's own all-reduce (MPI_Iallreduce), for elements that are
/// not encoded. The library chooses the order of the sum. It does not report its sent bytes, so 2
/// (p-1)/p n elements are counted.
class MpiReduction final : public Reduction {
 public:
  MpiReduction(Communicator& comm, Arena&, const PieceOptions&) : comm_(comm) {}

  void start(const SliceJob& job) override {
    require(request_.done(), "one array at a time", job.data.count());
    check(job.wire == nullptr || job.wire->plain(job.data.dtype),
          "MPI's own all-reduce knows no codecs; set parallel.reduction = \"sra\", or "
          "parallel.codec = \"fp32\"");
    if (comm_.size() > 1 && flat_count(job.data) > 0) {
      request_ = comm_.iall_reduce(job.data);
    }
  }
  Progress advance() override { return comm_.test(request_) ? Progress::done : Progress::stuck; }
  /// Only the library knows which rank is late.
  std::vector<int> missing() const override {
    std::vector<int> others;
    for (int rank = 0; !request_.done() && rank < comm_.size(); ++rank) {
      if (rank != comm_.rank()) {
        others.push_back(rank);
      }
    }
    return others;
  }

 private:
  Communicator& comm_;
  Request request_;
};

}  // namespace

ESPALIER_REGISTRY(kReductions, ReductionEntry, kSra, kRing, kAllToAll, kHierarchical, kMpi, kNccl);

const ReductionEntry kSra{.name = "sra",
                          .help = "scatter, sum in rank order, gather",
                          .on_device = true,
                          .make = make_kind<SraReduction>};
const ReductionEntry kMpi{.name = "mpi",
                          .help = "MPI's all-reduce, without codecs",
                          .takes_codecs = false,
                          .in_rank_order = false,
                          .make = make_with_sra_halves<MpiReduction>};
const ReductionEntry kNccl{.name = "nccl",
                           .help = "NCCL's all-reduce between GPUs, without codecs",
                           .takes_codecs = false,
                           .on_device = true,
                           .in_rank_order = false};

Registry<ReductionEntry> reductions() { return kReductions; }

std::unique_ptr<Reduction> make_reduction(std::string_view name, Communicator& comm, Arena& arena,
                                          const PieceOptions& options) {
  const ReductionEntry& entry = find(reductions(), "reduction", name);
  check(entry.make != nullptr,
        "reduction \"{}\" sums only between GPUs; set parallel.reduction = \"sra\"", name);
  return entry.make(comm, arena, options);
}

std::string_view reduction_for(std::string_view wanted, const Membership& members) {
  if (wanted != "auto") {
    return wanted;
  }
  const int machines = *std::ranges::max_element(members.node) + 1;
  const auto ranks = static_cast<int>(members.node.size());
  return machines > 1 && ranks > machines ? kHierarchical.name : kSra.name;
}

}  // namespace espalier::parallel
