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
#include <algorithm>
#include <map>
#include <memory>

#include "parallel/flat.h"
#include "parallel/reduction/registry.h"
#include "parallel/reduction/sra.h"

namespace espalier::parallel {
namespace {

int fewest_on_a_machine(const Membership& members) {
  std::map<int, int> ranks;
  for (const int node : members.node) {
    ++ranks[node];
  }
  return std::ranges::min_element(ranks, {}, &std::pair<const int, int>::second)->second;
}

/// Ranks of `part`, renumbered as in `whole`.
std::vector<int> renumbered(const std::vector<int>& ranks, const Communicator& part,
                            const Communicator& whole) {
  std::vector<int> result;
  for (const int rank : ranks) {
    const auto& world = whole.members().world;
    const auto place = std::ranges::find(world, part.members().world[rank]);
    result.push_back(static_cast<int>(place - world.begin()));
  }
  std::ranges::sort(result);
  return result;
}

class HierarchicalReduction final : public Reduction {
 public:
  HierarchicalReduction(Communicator& comm, Arena& arena, const PieceOptions& options)
      : comm_(comm),
        node_(comm.split(comm.members().node[comm.rank()], comm.rank())),
        across_(comm.split(node_->rank(), comm.rank())),
        owners_(fewest_on_a_machine(comm.members())),
        within_(*node_, arena, options),
        between_(*across_, arena, options) {}

  void start(const SliceJob& job) override;
  Progress advance() override;
  std::vector<int> missing() const override;

 private:
  enum class Stage : uint8_t { none, scatter, across, gather };

  bool owns() const { return node_->rank() < owners_; }
  SliceJob slice() const;
  void next();

  Communicator& comm_;
  std::unique_ptr<Communicator> node_;    ///< the ranks of this machine
  std::unique_ptr<Communicator> across_;  ///< the ranks with this local rank on all machines
  int owners_ = 1;                        ///< k
  SraReduction within_, between_;
  Stage stage_ = Stage::none;
  SliceJob job_;
  std::vector<int64_t> edges_;  ///< [ranks of this machine + 1]; ranks from k on own nothing
};

void HierarchicalReduction::start(const SliceJob& job) {
  require(stage_ == Stage::none, "one array at a time", job.data.count());
  if (comm_.size() == 1 || flat_count(job.data) == 0) {
    return;
  }
  job_ = job;
  edges_ = edges_of({.data = job.data}, owners_);
  edges_.resize(static_cast<size_t>(node_->size()) + 1, edges_.back());
  within_.start(
      {.data = job_.data, .phases = Phases::scatter, .edges = edges_, .number = job_.number});
  stage_ = Stage::scatter;
}

/// The slice that this rank sums with other machines.
SliceJob HierarchicalReduction::slice() const {
  const int64_t begin = edges_[static_cast<size_t>(node_->rank())];
  const int64_t end = edges_[static_cast<size_t>(node_->rank()) + 1];
  return {.data = flat_part(job_.data, begin, end - begin),
          .number = job_.number,
          .wire = job_.wire,
          .first = job_.first + begin};
}

void HierarchicalReduction::next() {
  switch (stage_) {
    case Stage::scatter:
      stage_ = Stage::across;
      if (owns()) {
        between_.start(slice());
      }
      return;
    case Stage::across:
      stage_ = Stage::gather;
      within_.start(
          {.data = job_.data, .phases = Phases::gather, .edges = edges_, .number = job_.number});
      return;
    default:
      stage_ = Stage::none;
  }
}

Progress HierarchicalReduction::advance() {
  bool moved = false;
  while (stage_ != Stage::none) {
    const Progress progress = (stage_ == Stage::across ? between_ : within_).advance();
    if (progress != Progress::done) {
      return moved ? Progress::moved : progress;
    }
    next();
    moved = true;
  }
  return Progress::done;
}

std::vector<int> HierarchicalReduction::missing() const {
  return stage_ == Stage::across ? renumbered(between_.missing(), *across_, comm_)
                                 : renumbered(within_.missing(), *node_, comm_);
}

/// Of two reductions with memory of their own.
Workspace sum(const Workspace& a, const Workspace& b) {
  return {.staging = a.staging + b.staging, .sums = a.sums + b.sums};
}

/// Of equal machines: sra within them, not encoded, and between them.
Workspace workspace_of_machines(const ReducedArray& array) {
  const int owners = array.ranks / array.machines;
  const size_t slice =
      owners == 1 ? array.bytes : array.bytes / static_cast<size_t>(owners) + kLine;
  const ReducedArray within{.bytes = owners == 1 ? 0 : array.bytes,
                            .dtype = array.dtype,
                            .ranks = owners,
                            .slice_bytes = slice};
  const ReducedArray between{.bytes = slice,
                             .dtype = array.dtype,
                             .ranks = array.machines,
                             .slice_bytes = slice / static_cast<size_t>(array.machines) + kLine,
                             .message_share = array.message_share};
  return sum(sra_workspace(within), sra_workspace(between));
}

/// Of any number of machines. Slices are those of the machine with the fewest ranks, at most the
/// whole array; pieces in flight are longer than a slice by less than a piece, so by less than a
/// slice. Messages of other pieces than sra's may be longer by an eighth.
Workspace hierarchical_workspace(const ReducedArray& array) {
  if (array.machines > 0) {
    return workspace_of_machines(array);
  }
  const auto in_flight = [&](size_t streams) {
    return std::min(PieceOptions{}.staging_bytes, 2 * streams * whole_lines(array.bytes));
  };
  constexpr size_t kStreams = 3;  // an encoded element is staged when sent, received and gathered
  const size_t within = in_flight(static_cast<size_t>(array.ranks - 1));
  const size_t between = array.message_bytes(in_flight(kStreams));
  return {.staging = within + between + between / 8,
          .sums = piece_values_bytes(array.bytes, array.dtype)};
}

}  // namespace

extern const ReductionEntry kHierarchical{.name = "hierarchical",
                                          .help = "sra within machines, then between them",
                                          .workspace = hierarchical_workspace,
                                          .make = make_with_sra_halves<HierarchicalReduction>};

}  // namespace espalier::parallel
