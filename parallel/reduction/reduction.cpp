#include "parallel/reduction/reduction.h"

#include <algorithm>
#include <utility>

#include "parallel/flat.h"

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

int64_t longest_slice(std::span<const int64_t> edges) {
  int64_t longest = 0;
  for (size_t r = 0; r + 1 < edges.size(); ++r) {
    longest = std::max(longest, edges[r + 1] - edges[r]);
  }
  return longest;
}

SlicePieces::Piece SlicePieces::at(int slice, int64_t index) const {
  const int64_t end = edges_[slice + 1];
  const int64_t begin = std::min(end, edges_[slice] + index * piece_elements_);
  const Tensor elements = job_.data.elements(begin, std::min(piece_elements_, end - begin));
  const int64_t number = job_.first + begin;
  return {.elements = elements,
          .number = number,
          .bytes =
              job_.wire != nullptr ? job_.wire->bytes(number, elements.count()) : elements.bytes()};
}

size_t SlicePieces::longest_message() const {
  size_t longest = 0;
  const auto consider = [&](int slice, int64_t index) {
    if (index < count(slice)) {
      longest = std::max(longest, at(slice, index).bytes);
    }
  };
  const std::span<const WireSegment> segments =
      job_.wire != nullptr ? job_.wire->segments() : std::span<const WireSegment>();
  for (int slice = 0; slice + 1 < std::ssize(edges_); ++slice) {
    consider(slice, 0);
    // Pieces within one segment have one size: those at its ends and one between them suffice.
    const int64_t begin = job_.first + edges_[slice];
    const int64_t end = job_.first + edges_[slice + 1];
    auto segment = std::ranges::lower_bound(segments, begin, {},
                                            [](const WireSegment& s) { return s.first + s.count; });
    for (; segment != segments.end() && segment->first < end; ++segment) {
      for (const int64_t place : {segment->first, segment->first + segment->count}) {
        const int64_t index = std::max<int64_t>(place - begin, 0) / piece_elements_;
        consider(slice, index);
        consider(slice, index + 1);
      }
    }
  }
  return longest;
}

}  // namespace espalier::parallel
