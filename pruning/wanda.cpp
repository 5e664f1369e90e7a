// Wanda: in each row of a matrix keeps the elements with the largest |w_ij| ‖x_j‖, where ‖x_j‖ is
// the norm of input j over calibration data. Source: Sun, Liu, Bair and Kolter, "A simple and
// effective pruning approach for large language models", ICLR 2024 (arXiv:2306.11695).
#include <algorithm>
#include <cmath>

#include "pruning/registry.h"
#include "pruning/selection.h"
#include "src/core/error.h"

namespace espalier::pruning {
namespace {

struct ScoredWeight {
  double score;
  int64_t position;
};

Result wanda(const Candidate& matrix, std::vector<double> squares, const Settings& settings,
             std::span<float> values) {
  const int64_t rows = matrix.shape.rows();
  const int64_t columns = matrix.shape.cols();
  require(static_cast<int64_t>(squares.size()) == columns, "a norm for each input", matrix.name,
          squares.size(), columns);
  const int64_t keep = kept_count(columns, settings.sparsity);
  check(keep > 0 || rows * columns == 0,
        "\"{}\" has rows of {} elements, which would keep none at sparsity {:.6g}: exclude it or "
        "lower the sparsity",
        matrix.name, columns, settings.sparsity);
  Result result{.masks = {matrix.index->mask()}, .warnings = {}};
  sparse::Mask& mask = result.masks.front();
  std::vector<ScoredWeight> row;
  int64_t shorter = 0;
  size_t next = 0;  // value
  for (int64_t r = 0; r < rows; ++r) {
    row.clear();
    for (int64_t c = 0; c < columns; ++c) {
      if (mask[r * columns + c]) {
        const double norm = std::sqrt(squares[static_cast<size_t>(c)]);
        row.push_back({std::fabs(static_cast<double>(values[next++])) * norm, r * columns + c});
      }
    }
    const auto count = static_cast<int64_t>(row.size());
    shorter += count < keep ? 1 : 0;
    if (count <= keep) {
      continue;
    }
    const auto end = row.begin() + keep;
    std::ranges::nth_element(row, end, [](const ScoredWeight& a, const ScoredWeight& b) {
      return a.score > b.score || (a.score == b.score && a.position < b.position);
    });
    std::for_each(end, row.end(), [&mask](const ScoredWeight& s) { mask.set(s.position, false); });
  }
  if (shorter > 0) {
    result.warnings.push_back(
        fmt::format("\"{}\": {} of {} rows keep fewer elements already than the {} of sparsity {}; "
                    "nothing comes back",
                    matrix.name, shorter, rows, keep, settings.sparsity));
  }
  return result;
}

}  // namespace

extern const Method kWanda{
    .name = "wanda",
    .help = "in each row the largest |value| x norm of the input; for `espalier prune`",
    .by_layer = true,
    .kind = Calibrated{.inputs = InputStatistic::squares, .prune = wanda},
};

}  // namespace espalier::pruning
