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

/// Of each rank: the ranks before it on its machine.
std::vector<int> places_on_machines(const Membership& members) {
  std::map<int, int> ranks;
  std::vector<int> places;
  for (const int node : members.node) {
    places.push_back(ranks[node]++);
  }
  return places;
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
        node_(comm.split_by(comm.members().node)),
        across_(comm.split_by(places_on_machines(comm.members()))),
        owners_(fewest_on_a_machine(comm.members())),
        within_(*node_, arena, options),
        between_(*across_, arena, options) {}

  void reserve(const SliceJob& job) override;
  void start(const SliceJob& job) override;
  Progress advance() override;
  std::vector<int> missing() const override;

 private:
  enum class Stage : uint8_t { none, scatter, across, gather };

  bool owns() const { return node_->rank() < owners_; }
  SliceJob scatter(const SliceJob& job);
  SliceJob slice(const SliceJob& job, size_t owner) const;
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
  within_.start(scatter(job_));
  stage_ = Stage::scatter;
}

void HierarchicalReduction::reserve(const SliceJob& job) {
  if (comm_.size() == 1 || flat_count(job.data) == 0) {
    return;
  }
  within_.reserve(scatter(job));
  for (size_t owner = 0; owner < static_cast<size_t>(owners_); ++owner) {
    between_.reserve(slice(job, owner));
  }
}

/// The sums within machines.
SliceJob HierarchicalReduction::scatter(const SliceJob& job) {
  edges_ = edges_of({.data = job.data}, owners_);
  edges_.resize(static_cast<size_t>(node_->size()) + 1, edges_.back());
  return {.data = job.data, .phases = Phases::scatter, .edges = edges_, .number = job.number};
}

/// The slice that an owner sums with other machines.
SliceJob HierarchicalReduction::slice(const SliceJob& job, size_t owner) const {
  const int64_t begin = edges_[owner];
  return {.data = flat_part(job.data, begin, edges_[owner + 1] - begin),
          .number = job.number,
          .wire = job.wire,
          .first = job.first + begin};
}

void HierarchicalReduction::next() {
  switch (stage_) {
    case Stage::scatter:
      stage_ = Stage::across;
      if (owns()) {
        between_.start(slice(job_, static_cast<size_t>(node_->rank())));
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

}  // namespace

extern const ReductionEntry kHierarchical{.name = "hierarchical",
                                          .help = "sra within machines, then between them",
                                          .make = make_with_sra_halves<HierarchicalReduction>};

}  // namespace espalier::parallel
