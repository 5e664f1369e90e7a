#include "pruning/report.h"

#include "src/core/error.h"

namespace espalier::pruning {
namespace {

double share(int64_t kept, int64_t size) {
  return size == 0 ? 1.0 : static_cast<double>(kept) / static_cast<double>(size);
}

}  // namespace

std::vector<DensityRow> density_report(std::span<const Candidate> candidates,
                                       std::span<const sparse::Mask> masks) {
  require(candidates.size() == masks.size(), "one mask per candidate", candidates.size(),
          masks.size());
  std::vector<DensityRow> rows;
  rows.reserve(masks.size() + 1);
  DensityRow total{.name = "total"};
  for (size_t i = 0; i < masks.size(); ++i) {
    const int64_t size = masks[i].size();
    const int64_t kept = masks[i].kept();
    rows.push_back({candidates[i].name, size, kept, share(kept, size)});
    total.size += size;
    total.kept += kept;
  }
  total.density = share(total.kept, total.size);
  rows.push_back(total);
  return rows;
}

}  // namespace espalier::pruning
