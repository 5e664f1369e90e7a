#include "parallel/reduction/reduction.h"

#include <algorithm>
#include <utility>

#include "parallel/reduction/flat.h"

namespace espalier::parallel {

void Reduction::wait(Communicator& comm) {
  comm.wait_until([this] { return advance(); }, [this] { return missing(); },
                  "summing gradients over all ranks");
}

std::vector<int64_t> edges_of(const SliceJob& job, int ranks) {
  const int64_t n = flat_count(job.data);
  if (!job.edges.empty()) {
    require(std::cmp_equal(job.edges.size(), ranks + 1) && job.edges.front() == 0 &&
                job.edges.back() == n && std::ranges::is_sorted(job.edges),
            "ascending edges from the array's begin to its end", job.edges.size(),
            job.edges.front(), job.edges.back(), n);
    return {job.edges.begin(), job.edges.end()};
  }
  const auto line = static_cast<int64_t>(kLine / size_of(job.data.dtype));
  const int64_t lines = (n + line - 1) / line;
  std::vector<int64_t> edges;
  for (int r = 0; r <= ranks; ++r) {
    edges.push_back(std::min(n, lines * r / ranks * line));
  }
  return edges;
}

void reserve(Arena& arena, Buffer& buffer, std::string_view name, DType dtype, int64_t count) {
  if (!buffer.tensor() || buffer.tensor().dtype != dtype || buffer.tensor().count() < count) {
    buffer.release();
    buffer = arena.allocate(Memory::communication, name, dtype, Shape{count});
  }
}

std::vector<int> distinct(std::vector<int> ranks) {
  std::ranges::sort(ranks);
  const auto repeated = std::ranges::unique(ranks);
  ranks.erase(repeated.begin(), repeated.end());
  return ranks;
}

}  // namespace espalier::parallel
