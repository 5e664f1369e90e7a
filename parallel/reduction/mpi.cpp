#include "parallel/reduction/mpi.h"

#include "parallel/reduction/flat.h"

namespace espalier::parallel {

MpiReduction::MpiReduction(Communicator& comm, Arena& arena, const PieceOptions& options)
    : comm_(comm), halves_(comm, arena, options) {}

void MpiReduction::start(const SliceJob& job) {
  half_ = job.phases != Phases::both;
  if (half_) {
    return halves_.start(job);
  }
  require(request_.done(), "one array at a time", job.data.count());
  check(
      job.wire == nullptr || job.wire->plain(job.data.dtype),
      "MPI's own all-reduce knows no codecs; set parallel.reduction = \"sra\", or parallel.codec = "
      "\"fp32\"");
  if (comm_.size() > 1 && flat_count(job.data) > 0) {
    request_ = comm_.iall_reduce(job.data);
  }
}

Progress MpiReduction::advance() {
  if (half_) {
    return halves_.advance();
  }
  return comm_.test(request_) ? Progress::done : Progress::stuck;
}

/// Only the library knows which rank is late.
std::vector<int> MpiReduction::missing() const {
  if (half_) {
    return halves_.missing();
  }
  std::vector<int> others;
  for (int rank = 0; !request_.done() && rank < comm_.size(); ++rank) {
    if (rank != comm_.rank()) {
      others.push_back(rank);
    }
  }
  return others;
}

}  // namespace espalier::parallel
