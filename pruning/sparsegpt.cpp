// SparseGPT: prunes a matrix W [out, in] column by column; after each column the later ones take
// over what the pruned elements contributed to W X (optimal brain surgeon). Source: Frantar and
// Alistarh, "SparseGPT: massive language models can be accurately pruned in one-shot", ICML 2023
// (arXiv:2301.00774), algorithm 1.
//
//   H = X Xᵀ + λ I, λ = 1 % of the mean diagonal of X Xᵀ;  H⁻¹ = Uᵀ U
//   for each block of 128 columns: keep the elements with the largest w_ij² / [H⁻¹]_jj, where H⁻¹
//   is that of the columns not yet visited, which is U_jj²; all rows compete
//     for each of its columns j:  e = w_j / U_jj where pruned, else 0;  w_k -= e U_jk for k >= j
//
// The update of columns behind the block is the same sum, once per block. Memory: fp64 H, in which
// U replaces it, and fp64 W. No threads; 2 in³ / 3 + out in² operations.
#include <algorithm>

#include "pruning/inverse_factor.h"
#include "pruning/registry.h"
#include "pruning/selection.h"
#include "src/core/error.h"

namespace espalier::pruning {
namespace {

constexpr int64_t kBlock = 128;
constexpr double kDampening = 0.01;

struct ScoredElement {
  double score;
  int64_t position;
};

/// Adds λ to the diagonal, and factors the inverse.
void factor(const std::string& name, std::vector<double>& products, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += products[static_cast<size_t>(i * n + i)];
  }
  const double lambda = sum > 0 ? kDampening * sum / static_cast<double>(n) : 1;  // no inputs: W
  for (int64_t i = 0; i < n; ++i) {
    products[static_cast<size_t>(i * n + i)] += lambda;
  }
  check(factor_inverse(products, n),
        "the inputs of \"{}\" on the calibration data are not finite, or too large: the network "
        "has diverged, use an earlier checkpoint",
        name);
}

class Sweep {
 public:
  Sweep(const Candidate& matrix, std::vector<double> factor, std::span<const float> values)
      : rows_(matrix.shape.rows()),
        columns_(matrix.shape.cols()),
        factor_(std::move(factor)),
        weights_(static_cast<size_t>(matrix.shape.count())),
        mask_(matrix.index->mask()) {
    size_t next = 0;
    sparse::for_each_one(mask_.words(), [&](int64_t position) {
      weights_[static_cast<size_t>(position)] = static_cast<double>(values[next++]);
    });
  }

  /// Returns the number of elements that earlier pruning had taken beyond the target.
  int64_t run(double sparsity) {
    int64_t missing = 0;
    std::vector<double> errors(kBlock);
    for (int64_t first = 0; first < columns_; first += kBlock) {
      const int64_t end = std::min(first + kBlock, columns_);
      missing += choose(first, end,
                        kept_count(rows_ * end, sparsity) - kept_count(rows_ * first, sparsity));
      for (int64_t row = 0; row < rows_; ++row) {
        compensate(row, first, end, errors);
      }
    }
    return missing;
  }

  const sparse::Mask& mask() const { return mask_; }
  double weight(int64_t position) const { return weights_[static_cast<size_t>(position)]; }

 private:
  const double* factor_row(int64_t row) const { return factor_.data() + row * columns_; }

  int64_t choose(int64_t first, int64_t end, int64_t keep) {
    scored_.clear();
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t c = first; c < end; ++c) {
        const int64_t position = row * columns_ + c;
        if (mask_[position]) {
          const double root = weights_[static_cast<size_t>(position)] / factor_row(c)[c];
          scored_.push_back({root * root, position});
        }
      }
    }
    const auto count = static_cast<int64_t>(scored_.size());
    if (count > keep) {
      const auto limit = scored_.begin() + keep;
      std::ranges::nth_element(scored_, limit, [](const ScoredElement& a, const ScoredElement& b) {
        return a.score > b.score || (a.score == b.score && a.position < b.position);
      });
      std::for_each(limit, scored_.end(),
                    [this](const ScoredElement& s) { mask_.set(s.position, false); });
    }
    return std::max<int64_t>(keep - count, 0);
  }

  /// The columns [first, end) of one row, and what their errors change in later ones.
  void compensate(int64_t row, int64_t first, int64_t end, std::vector<double>& errors) {
    double* const w = weights_.data() + row * columns_;
    for (int64_t c = first; c < end; ++c) {
      double& error = errors[static_cast<size_t>(c - first)];
      error = 0;
      if (mask_[row * columns_ + c]) {
        continue;
      }
      const double* const u = factor_row(c);
      error = w[c] / u[c];
      w[c] = 0;
      for (int64_t k = c + 1; k < end; ++k) {
        w[k] -= error * u[k];
      }
    }
    for (int64_t c = first; c < end; ++c) {
      const double error = errors[static_cast<size_t>(c - first)];
      const double* const u = factor_row(c);
      for (int64_t k = end; error != 0 && k < columns_; ++k) {
        w[k] -= error * u[k];
      }
    }
  }

  int64_t rows_, columns_;
  std::vector<double> factor_;   ///< U
  std::vector<double> weights_;  ///< dense
  sparse::Mask mask_;
  std::vector<ScoredElement> scored_;
};

Result sparsegpt(const Candidate& matrix, std::vector<double> products, const Settings& settings,
                 std::span<float> values) {
  const int64_t columns = matrix.shape.cols();
  require(static_cast<int64_t>(products.size()) == columns * columns, "products of all inputs",
          matrix.name, products.size(), columns);
  const int64_t target = kept_count(matrix.shape.count(), settings.sparsity);
  check(target > 0 || matrix.shape.count() == 0,
        "\"{}\" has {} elements and would keep none at sparsity {:.6g}: exclude it or lower the "
        "sparsity",
        matrix.name, matrix.shape.count(), settings.sparsity);
  factor(matrix.name, products, columns);
  Sweep sweep(matrix, std::move(products), values);
  Result result;
  if (const int64_t missing = sweep.run(settings.sparsity); missing > 0) {
    result.warnings.push_back(
        fmt::format("\"{}\": blocks of columns keep {} elements fewer already than the {} of "
                    "sparsity {}; nothing comes back",
                    matrix.name, missing, target, settings.sparsity));
  }
  size_t next = 0;
  sparse::for_each_one(matrix.index->mask().words(), [&](int64_t position) {
    values[next++] = static_cast<float>(sweep.weight(position));
  });
  result.masks = {sweep.mask()};
  return result;
}

}  // namespace

extern const Method kSparseGpt{
    .name = "sparsegpt",
    .help = "column by column, the rest takes over what was pruned; for `espalier prune`",
    .by_layer = true,
    .kind = Calibrated{.inputs = InputStatistic::products, .prune = sparsegpt},
};

}  // namespace espalier::pruning
