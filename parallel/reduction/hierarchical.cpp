#include "parallel/reduction/hierarchical.h"

#include <algorithm>
#include <map>

#include "parallel/reduction/flat.h"

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

}  // namespace

HierarchicalReduction::HierarchicalReduction(Communicator& comm, Arena& arena,
                                             const PieceOptions& options)
    : comm_(comm),
      node_(comm.split(comm.members().node[comm.rank()], comm.rank())),
      across_(comm.split(node_->rank(), comm.rank())),
      owners_(fewest_on_a_machine(comm.members())),
      halves_(comm, arena, options),
      within_(std::make_unique<SraReduction>(*node_, arena, options)),
      between_(std::make_unique<SraReduction>(*across_, arena, options)) {}

void HierarchicalReduction::start(const SliceJob& job) {
  require(stage_ == Stage::none, "one array at a time", job.data.count());
  if (job.phases != Phases::both) {
    halves_.start(job);
    stage_ = Stage::halves;
    return;
  }
  if (comm_.size() == 1 || flat_count(job.data) == 0) {
    return;
  }
  job_ = job;
  edges_ = edges_of({.data = job.data}, owners_);
  edges_.resize(static_cast<size_t>(node_->size()) + 1, edges_.back());
  within_->start(
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
        between_->start(slice());
      }
      return;
    case Stage::across:
      stage_ = Stage::gather;
      within_->start(
          {.data = job_.data, .phases = Phases::gather, .edges = edges_, .number = job_.number});
      return;
    default:
      stage_ = Stage::none;
  }
}

Progress HierarchicalReduction::advance() {
  bool moved = false;
  while (stage_ != Stage::none) {
    Reduction& now = stage_ == Stage::halves   ? static_cast<Reduction&>(halves_)
                     : stage_ == Stage::across ? static_cast<Reduction&>(*between_)
                                               : static_cast<Reduction&>(*within_);
    const Progress progress = now.advance();
    if (progress != Progress::done) {
      return moved ? Progress::moved : progress;
    }
    next();
    moved = true;
  }
  return Progress::done;
}

std::vector<int> HierarchicalReduction::missing() const {
  switch (stage_) {
    case Stage::none:
      return {};
    case Stage::halves:
      return halves_.missing();
    case Stage::across:
      return renumbered(between_->missing(), *across_, comm_);
    default:
      return renumbered(within_->missing(), *node_, comm_);
  }
}

}  // namespace espalier::parallel
