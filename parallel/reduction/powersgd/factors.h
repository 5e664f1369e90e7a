#pragma once
// PowerSGD: the sum over ranks of a gradient matrix M [m, n] as the product of two thin factors of
// r columns, and the error of that product.
//
//   M := gradient + e               e, this rank's error feedback, holds M after this step
//   P := sum of M Q                 [m, r]; Q is that of the previous step
//   P := orthonormal columns of P   all ranks hold equal inputs, so P is equal on all ranks
//   Q := sum of Q_r, Q_r = Mᵀ P     [n, r]
//   gradient := P Qᵀ                e := M - P Q_rᵀ
//
// The e of all ranks add up to the error of the sum, for every P. A sum of rank r or less is exact.
// A column of P that depends on the previous ones (to 4e-6 of its length) becomes zero, and its Q
// is drawn anew: zeros would stay zeros. If M is not finite on one rank, the sum is NaN on all, and
// e and Q discard the step. All ranks compute P Qᵀ from the same numbers: its bits are the same on
// machines of the same kind, as the optimizer's are.
//
// All kernels run on one stream, so memory is that stream's: the host's, or a device's. Factors are
// stored transposed: a column is contiguous. Cost of a matrix: 8 m n r + 4 m r² flops, eight passes
// over m n numbers, 4 r n bytes of memory and e; 4 r (m + n) bytes are summed instead of 4 m n. One
// core takes 7 ms for the 10.6 M elements of a GPT of 6 layers of 384 with r = 4, in fp32 or bf16,
// and 12 ms with r = 16. Source: Vogels, Karimireddy, Jaggi, "PowerSGD", NeurIPS 2019, algorithms 1
// and 2.
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "parallel/reduction/partition.h"
#include "src/core/arena.h"
#include "src/kernels/kernels.h"

namespace espalier::parallel {

struct LowRankMatrix {
  int64_t first = 0;  ///< flat element
  int64_t rows = 0, cols = 0;
  int64_t rank = 1;  ///< columns of the factors; limited to rows and cols
  uint64_t key = 0;  ///< unique: seeds the first Q, and identifies the matrix whose Q is kept
  int64_t count() const { return rows * cols; }
  int64_t end() const { return first + count(); }
};

/// The matrices of one flat array, and their state between steps. Equal on all ranks, except e.
class LowRank {
 public:
  /// Both must outlive it. `panel`: elements of a sum that are computed in fp32 at once, in whole
  /// rows, if the array has 16 bits.
  LowRank(const kernels::Kernels& kernels, Stream& stream, int64_t panel = int64_t{1} << 16)
      : kernels_(kernels), stream_(stream), panel_elements_(panel) {}
  LowRank(const LowRank&) = delete;
  LowRank& operator=(const LowRank&) = delete;

  const kernels::Kernels& kernels() const { return kernels_; }
  Stream& stream() const { return stream_; }
  /// Ascending, not overlapping, distinct `key`s. A matrix keeps its Q if its key existed with the
  /// same columns and rank. Removed matrices lose their Q.
  void set_matrices(std::vector<LowRankMatrix> matrices);
  std::span<const LowRankMatrix> matrices() const { return matrices_; }
  /// e: fp32, as long as the array.
  void set_feedback(const Tensor& feedback) { feedback_ = feedback; }
  /// While false no matrix is reduced; kept state is unchanged.
  void set_active(bool active) { active_ = active; }
  /// Elements that no longer belong to a matrix, ascending: their e is added to the gradient
  /// unchanged.
  void set_released(std::vector<Range> released) { released_ = std::move(released); }

  /// The matrices to be reduced within these elements. Throws Bug if one lies there only partly.
  std::span<const LowRankMatrix> within(const Range& elements) const;
  /// The matrix that begins at `first`, reduced now or not; or none.
  const LowRankMatrix* find(int64_t first) const;
  /// Whether a matrix to be reduced contains the element.
  bool holds(int64_t element) const;
  /// Qᵀ, fp32 [rank, cols].
  Tensor factor(const LowRankMatrix& matrix) const;

  // Steps of a reduction. `gradient` is the matrix's part of the array, fp32, bf16 or fp16. p is Pᵀ
  // [rank, rows] and q is Qᵀ [rank, cols], both fp32 and contiguous.

  /// gradient += e, and e = 0, in the released part of these elements.
  void release(const Range& elements, const Tensor& gradient);
  /// M := gradient + e; p = (M Q)ᵀ
  void project(const LowRankMatrix& matrix, const Tensor& gradient, const Tensor& p);
  /// p becomes orthonormal; q = (Mᵀ P)ᵀ
  void project_back(const LowRankMatrix& matrix, const Tensor& p, const Tensor& q);
  /// y = -x, fp32.
  void negate(const Tensor& x, const Tensor& y);
  /// e := M + P Qᵀ, where `minus_q` is the negated result of `project_back`.
  void keep_rest(const LowRankMatrix& matrix, const Tensor& p, const Tensor& minus_q);
  /// gradient := P Qᵀ; Q is kept.
  void finish(const LowRankMatrix& matrix, const Tensor& p, const Tensor& q,
              const Tensor& gradient);

 private:
  struct Kept {
    int64_t cols = 0, rank = 0;
    Buffer factor;
  };
  Tensor error_of(const LowRankMatrix& matrix) const;
  Tensor matrix_of(const LowRankMatrix& matrix) const;
  Kept begin(const LowRankMatrix& matrix);
  void multiply(const Tensor& p, const Tensor& q, const Tensor& gradient);

  const kernels::Kernels& kernels_;
  Stream& stream_;
  int64_t panel_elements_;
  std::vector<LowRankMatrix> matrices_;
  std::map<uint64_t, Kept> kept_;  ///< by key
  std::vector<Range> released_;
  Tensor feedback_;
  bool active_ = true;
  Buffer panel_;  ///< fp32 rows of a sum, before rounding to 16 bits
};

}  // namespace espalier::parallel
