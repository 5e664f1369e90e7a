#pragma once
// The optimizer: the norm of a gradient and its clipping, moments in 8 bits, and the fused update.
#include <cstdint>

#include "src/core/tensor.h"
#include "src/kernels/sparse_matrix.h"

namespace espalier::kernels {

/// The squares of x (any), summed in double for each kSumBlock elements (the last block may be
/// shorter), and those sums exactly: counts += their digits (core/exact_sum.h, add_to). Element i
/// of a block belongs to column i % kSumColumns; columns are summed from the first row on, and then
/// halved: column c gets c + 16, then c + 8, … So all tables have the same bits, wherever an array
/// is cut between blocks.
struct SumSquaresArgs {
  Tensor x;
  Tensor counts;  ///< uint64 [ExactSum::kWords]
};
inline constexpr int64_t kSumBlock = 256;
inline constexpr int64_t kSumColumns = 32;

/// What an update multiplies its gradient with, from the sum of squares (SumSquaresArgs):
///   norm = sqrt(sum) / scale, the sum as the host has it (ExactSum::value), rounded to fp32
///   factor = clip / (norm + 1e-6) when clip > 0 and norm > clip, else 1, from the norm in double,
///   over scale; NaN when the norm is not finite
struct ClipArgs {
  Tensor counts;        ///< uint64 [ExactSum::kWords]
  Tensor norm, factor;  ///< fp32 [1]
  double clip = 0;
  double scale = 1;  ///< > 0: gradients are this many times too large
};

/// Elements that share one scale in 8-bit arrays.
inline constexpr int64_t kQuantizeBlock = 256;

/// The dynamic tree code of 8 bits (Dettmers 2016; bitsandbytes' maps of 256 values, ascending, in
/// [-1, 1] or [0, 1]): one code stands for a value relative to the scale of its block.
enum class DynamicMap : uint8_t { with_sign, without_sign };

/// codes[k] = the nearest of the map's values to x[k] / scale, scale = the element of the block of
/// kQuantizeBlock with the largest magnitude, with its sign: that element is kept exactly, so that
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

/// How an update rounds where a value of 16 bits is all there is of the master copy: up or down, each
/// with the probability that makes the mean exact, by the draw Philox(key, first + k) of element k.
struct RandomRounding {
  uint64_t key = 0;
  int64_t first = 0;
};

/// The rules of optimizers (rules/update.h). g = gradient * scale; bias_i = 1 - beta_i^t.
///   adamw   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g²
///           w -= lr (m / bias1 / (sqrt(v / bias2) + epsilon) + weight_decay w)
///           Loshchilov and Hutter, ICLR 2019, algorithm 2 (decay times lr as in PyTorch)
///   sgd     m = beta1 m + g + weight_decay w;  w -= lr m
///   lion    u = sign(beta1 m + (1 - beta1) g);  w -= lr (u + weight_decay w)
///           m = beta2 m + (1 - beta2) g;  sign(0) = 0. Chen et al., 2023, arXiv 2302.06675, algorithm 2
enum class UpdateRule : uint8_t { adamw, sgd, lion };

/// One fused pass over kept elements. w is the master copy: `value` itself in fp32; else the number
/// of which `value` and `low` are the halves (core/types.h, SplitFloat), or without `low` `value`
/// again, rounded at random. Then dense[position k] = value[k] unless `dense` is empty; all of w
/// where that is fp32 and all are kept. Moments are fp32, or uint8 codes with their scales (moment1
/// with_sign, moment2 without_sign), decoded and encoded in the pass. With `factor`, that is `scale`
/// instead; one that is not finite changes nothing at all. All updates of a call have one rule.
struct UpdateArgs {
  UpdateRule rule = UpdateRule::adamw;
  Tensor gradient;  ///< any [count]
  Tensor value;     ///< any [count]
  Tensor low;       ///< uint16 [count]; empty when value is fp32, or all there is
  Tensor moment1,
      moment2;            ///< fp32 or uint8 [count]; moment2 is empty where the rule has one moment
  Tensor scale1, scale2;  ///< fp32 [blocks] when moments are uint8
  Tensor dense;           ///< any [positions.size], or empty
  Positions positions;
  Tensor factor;  ///< fp32 [1], or empty
  float scale = 1, lr = 0, beta1 = 0.9F, beta2 = 0.95F, epsilon = 1e-8F, weight_decay = 0;
  float bias1 = 1, bias2 = 1;
  RandomRounding rounding;
};

/// Where the optimizer will bring the weights if its direction stays as it is: for each term in
/// turn
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
