// Softmax and cross-entropy by row. A buffer in L1 holds logits for their maximum, exponentials and
// sum. A row that fits is read and exponentiated once. A longer row is processed in parts, with a
// running maximum and sum (online softmax), and exponentiated again for the gradient.
#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/simd/reduce.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/rules/softmax.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kPart = 1024;

using rules::Normaliser;

/// Sets part = x; returns the largest of `least` and its elements.
template <class T>
float load_part(const T* x, int64_t n, float least, float* part) {
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    part[c] = load(x + c);
  }
  return maximum_over(part, n, least);
}

void exponentiate(float* part, int64_t n, float top) {
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    part[c] = exp_below(part[c] - top);
  }
}

/// The number of x[c] above `logit`, or equal if `ties`; NaN counts.
int64_t count_above(const float* x, int64_t n, float logit, bool ties) {
  int32_t count = 0;
  if (ties) {
#pragma omp simd reduction(+ : count)
    for (int64_t c = 0; c < n; ++c) {
      count += !(x[c] < logit) ? 1 : 0;
    }
  } else {
#pragma omp simd reduction(+ : count)
    for (int64_t c = 0; c < n; ++c) {
      count += !(x[c] <= logit) ? 1 : 0;
    }
  }
  return count;
}

/// Over a row: the sum for label smoothing, and the number of elements before the target.
struct More {
  bool smooths, ranks;
  float logit;  ///< of the target
  int64_t target;
  float sum = 0;
  int64_t before = 0;

  /// Columns [first, first + n) of the row.
  void add(const float* part, int64_t first, int64_t n) {
    if (smooths) {
      sum += sum_over(part, n, [](auto x) { return x; });
    }
    if (ranks) {  // up to the target, the target, after it
      const int64_t at = target - first;
      const int64_t equal_first = at < 0 ? 0 : least(at, n);
      const int64_t rest = at < 0 ? 0 : least(at + 1, n);
      before += count_above(part, equal_first, logit, true) +
                count_above(part + rest, n - rest, logit, false) +
                (equal_first < rest && logit != logit ? 1 : 0);
    }
  }
};

template <class T>
Normaliser long_row(const T* x, int64_t n, float* part, More& more) {
  Normaliser total;
  for (int64_t first = 0; first < n; first += kPart) {
    const int64_t count = least(kPart, n - first);
    const float top = load_part(x + first, count, total.top, part);
    more.add(part, first, count);
    exponentiate(part, count, top);
    const float sum = sum_over(part, count, [](auto e) { return e; });
    total = {top, total.sum * exp_below(total.top - top) + sum};
  }
  return total;
}

template <class T, class D>
void long_row_gradient(const T* x, int64_t n, const Normaliser& total,
                       const rules::RowLoss& row_loss, D* dx) {
  const float factor = row_loss.factor;
  const float even = row_loss.even;
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    store(dx + c, factor * exp_below(load(x + c) - total.top) - even);
  }
}

template <class D>
void short_row_gradient(const float* exponentials, int64_t n, const rules::RowLoss& row_loss,
                        D* dx) {
  const float factor = row_loss.factor;
  const float even = row_loss.even;
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    store(dx + c, factor * exponentials[c] - even);
  }
}

template <class T>
class Rows {
 public:
  explicit Rows(const CrossEntropyArgs& args) : args_(args), cols_(args.logits.cols()) {}

  /// Rows [first, first + n): each step runs for all of them before the next step, see kRowGroup.
  void run(int64_t first, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const int32_t target = elements<int32_t>(args_.targets)[first + i];
      more_[i] = {.smooths = args_.smoothing > 0,
                  .ranks = args_.target_ranks.data != nullptr,
                  .logit = load(row_of<T>(args_.logits, first + i) + target),
                  .target = target};
    }
    for (int64_t i = 0; i < n && !fits(); ++i) {
      totals_[i] = long_row(row_of<T>(args_.logits, first + i), cols_, parts_[i], more_[i]);
    }
    for (int64_t i = 0; i < n && fits(); ++i) {
      totals_[i].top = load_part(row_of<T>(args_.logits, first + i), cols_, -kLargest, parts_[i]);
      more_[i].add(parts_[i], 0, cols_);
    }
    for (int64_t i = 0; i < n && fits(); ++i) {
      exponentiate(parts_[i], cols_, totals_[i].top);
    }
    for (int64_t i = 0; i < n && fits(); ++i) {
      totals_[i].sum = sum_over(parts_[i], cols_, [](auto e) { return e; });
    }
    for (int64_t i = 0; i < n; ++i) {
      finish(first + i, i);
    }
  }

 private:
  bool fits() const { return cols_ <= kPart; }

  /// Loss and gradient of `row`, which is number i of its group.
  void finish(int64_t row, int64_t i) {
    const T* x = row_of<T>(args_.logits, row);
    const Normaliser& total = totals_[i];
    const More& more = more_[i];
    const rules::Smoothing smoothing{args_.smoothing, static_cast<float>(cols_), more.sum};
    const auto row_loss = rules::row_loss<Math>(total, more.logit, args_.scale, smoothing);
    elements<float>(args_.losses)[row] = row_loss.loss;
    if (more.ranks) {
      elements<float>(args_.target_ranks)[row] = static_cast<float>(more.before);
    }
    if (args_.dlogits.data == nullptr) {
      return;
    }
    with_type_beside<T>(args_.dlogits.dtype, [&](auto type) {
      auto* dx = row_of<decltype(type)>(args_.dlogits, row);
      if (fits()) {
        short_row_gradient(parts_[i], cols_, row_loss, dx);
      } else {
        long_row_gradient(x, cols_, total, row_loss, dx);
      }
      store(dx + more.target, row_loss.at_target);
    });
  }

  const CrossEntropyArgs& args_;
  int64_t cols_;
  Normaliser totals_[kRowGroup];
  More more_[kRowGroup];
  alignas(64) float parts_[kRowGroup][kPart];
};

}  // namespace

void cross_entropy(Stream& stream, const CrossEntropyArgs& args) {
  cpu::require_ids_below("target", args.targets, args.logits.cols());
  with_type(args.logits.dtype, [&](auto type) {
    for_row_groups(stream.threads(), args.logits.rows(), args.logits.cols(),
                   [&](int64_t first, int64_t n) { Rows<decltype(type)>(args).run(first, n); });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
