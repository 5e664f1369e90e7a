#pragma once
// The optimizer: gradient norm and clipping, 8-bit moments, and the fused update.
#include <cstdint>

#include "src/core/tensor.h"
#include "src/kernels/sparse_matrix.h"

namespace espalier::kernels {

/// Squares of x (any), summed in double for each block of kSumBlock elements (the last may be
/// shorter); counts += the digits of those sums, exactly (core/exact_sum.h, add_to). Element i of a
/// block belongs to column i % kSumColumns. Columns are summed from the first row on, then halved:
/// column c gets c + 16, then c + 8, … So all tables give the same bits, for any cut of an array
/// between blocks.
struct SumSquaresArgs {
  Tensor x;
  Tensor counts;  ///< uint64 [ExactSum::kWords]
};
inline constexpr int64_t kSumBlock = 256;
inline constexpr int64_t kSumColumns = 32;

/// The factor of the gradient in an update, from the sum of squares (SumSquaresArgs):
///   norm = sqrt(sum) / scale, rounded to fp32; sum is equal to ExactSum::value on the host
///   factor = (clip / (norm + 1e-6) when clip > 0 and norm > clip, else 1) / scale, with the norm
///   in double; NaN when the norm is not finite
struct ClipArgs {
  Tensor counts;        ///< uint64 [ExactSum::kWords]
  Tensor norm, factor;  ///< fp32 [1]
  double clip = 0;
  double scale = 1;  ///< > 0: gradients are too large by this factor
};

/// Elements that share one scale in 8-bit arrays.
inline constexpr int64_t kQuantizeBlock = 256;

/// The dynamic tree code of 8 bits (Dettmers 2016; bitsandbytes' maps of 256 values, ascending, in
/// [-1, 1] or [0, 1]). A code represents a value relative to the scale of its block.
enum class DynamicMap : uint8_t { with_sign, without_sign };

/// codes[k] = the nearest of the map's values to x[k] / scale; scale = the element with the largest
/// magnitude in the block of kQuantizeBlock, with its sign. That element is kept exactly, so
/// quantize(dequantize(c)) = c. x fp32 [count], codes uint8 [count], scales fp32 [blocks].
struct QuantizeArgs {
  Tensor x, codes, scales;
  DynamicMap map = DynamicMap::with_sign;
};
/// x[k] = map[codes[k]] scale.
struct DequantizeArgs {
  Tensor codes, scales, x;
  DynamicMap map = DynamicMap::with_sign;
};

/// Stochastic rounding of an update whose 16-bit value has no `low` half: up or down, with
/// probabilities that make the expectation exact, by the draw Philox(key, first + k) of element k.
struct RandomRounding {
  uint64_t key = 0;
  int64_t first = 0;
};

/// The rules of optimizers (rules/update.h). g = gradient * scale; bias_i = 1 - beta_i^t.
///   adamw   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g²
///           w -= lr (m / c1 / (sqrt(v / c2) + epsilon) + weight_decay w), c = bias_correction
///           Loshchilov and Hutter, ICLR 2019, algorithm 2 (decay times lr as in PyTorch)
///   sgd     m = beta1 m + g + weight_decay w;  w -= lr m
///   nesterov  d = g + weight_decay w;  m = beta1 m + d;  w -= lr (d + beta1 m)
///   lion    u = sign(beta1 m + (1 - beta1) g);  w -= lr (u + weight_decay w)
///           m = beta2 m + (1 - beta2) g;  sign(0) = 0
///           Chen et al., 2023, arXiv 2302.06675, algorithm 2
///   average w -= lr gradient, without `scale`: of statistics, which are no parameters of the loss.
///           Moments stay
enum class UpdateRule : uint8_t { adamw, sgd, lion, nesterov, average };

/// Sees the elements of an update while they are in cache: called for consecutive blocks of at most
/// kObservedBlock elements that cover all, from any thread of the stream, right before and right
/// after a block changes. Tables of CPUs only.
struct UpdateObserver {
  void* self = nullptr;
  void (*before)(void* self, int64_t first, int64_t count) = nullptr;
  void (*after)(void* self, int64_t first, int64_t count) = nullptr;
};
inline constexpr int64_t kObservedBlock = 4096;

/// One fused pass over kept elements.
///   w        the master copy: `value` itself in fp32; else the number with the halves `value` and
///            `low` (rules/master.h, SplitFloat); without `low`, `value` with stochastic rounding
///   dense    unless empty, dense[position k] = value[k]; all of w if w is fp32 and all elements
///            are kept
///   moments  fp32, or uint8 codes with scales (moment1 with_sign, moment2 without_sign), decoded
///            and encoded in the pass
///   factor   replaces `scale`; if it is not finite, nothing changes
/// All updates of a call have one rule.
struct UpdateArgs {
  UpdateRule rule = UpdateRule::adamw;
  Tensor gradient;  ///< any [count]
  Tensor value;     ///< any [count]
  Tensor low;       ///< uint16 [count]; empty if value is fp32, or has no low half
  Tensor moment1,
      moment2;            ///< fp32 or uint8 [count]; moment2 is empty if the rule has one moment
  Tensor scale1, scale2;  ///< fp32 [blocks] when moments are uint8
  Tensor dense;           ///< any [positions.size], or empty
  Positions positions;
  Tensor factor;  ///< fp32 [1], or empty
  float scale = 1, lr = 0, beta1 = 0.9F, beta2 = 0.95F, epsilon = 1e-8F, weight_decay = 0;
  float bias_correction1 = 1, bias_correction2 = 1;
  RandomRounding rounding;
  const UpdateObserver* observer = nullptr;  ///< only without `dense`; null: none
};

/// Predicts the weights after further updates in the current direction: for each term in turn
///   w = keep w - step m / (root sqrt(v) + epsilon)      without moment2:  w = keep w - step m
/// from the master copy (UpdateArgs), into `out`, rounded, and into `exact`, not rounded. Nothing
/// else changes. Moments as in UpdateArgs. `value` may be `out`.
struct PredictArgs {
  struct Term {
    float keep = 1, step = 0, root = 1;
  };
  Tensor value, low;        ///< the master copy, as in UpdateArgs
  Tensor moment1, moment2;  ///< fp32 or uint8 [count]; moment2 may be empty
  Tensor scale1, scale2;
  Tensor out;    ///< type of value [count], or empty
  Tensor exact;  ///< fp32 [count], or empty
  const Term* terms = nullptr;
  int64_t term_count = 0;
  float epsilon = 1e-8F;
};

}  // namespace espalier::kernels
