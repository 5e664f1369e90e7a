#pragma once
// All arithmetic, as one table of operations per backend. Read this first.
//
// An operation takes (Stream&, const XArgs&): views and scalars, no parameters, masks or ranks; or
// Each<XArgs>, what it does for several arrays in one call.
// Rows of `Kernels` may be null (unsupported); a test lists them. Backends: "cuda" (GPUs; calls
// return before they are done, and every pointer is the device's, or pinned memory's:
// core/device.h), "cpu-avx512bf16", "cpu-avx512", "cpu-avx2", "cpu-portable" (the same sources
// compiled for four instruction sets; dense GEMMs are oneDNN's in all) and "dry" (computes nothing,
// counts flops and bytes).
//
// Letters: R rows (tokens of a micro-batch), C columns (features), B sequences, T context, H heads,
// D = C/H head width, V vocabulary. "any" = fp32, bf16 or fp16; no call has
// operands of both the last two. Sums over rows are split in a way that depends on the shape alone,
// so results do not depend on the number of threads (GEMMs: oneDNN's own).
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/stream.h"
#include "src/core/tensor.h"
#include "src/kernels/sparse_matrix.h"
#include "src/kernels/update_args.h"
#include "src/kernels/wire_format.h"

namespace espalier::kernels {

/// gelu: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as in GPT-2.
enum class Activation : uint8_t { none, gelu, relu };

/// Floating-point formats of 8 bits (OCP FP8): 4 bits of exponent, up to 448, or 5, up to 57,344.
enum class Float8 : uint8_t { none, e4m3, e5m2 };

/// c [M, N] = op(a) op(b) (+ c when `accumulate`, else + `addend`) (+ bias [N], fp32). op transposes
/// when asked.
/// a, b: any, the same type; c: fp32 or that type; accumulation in fp32. Rows may be strided. fp32
/// of a and b may be rounded to TF32 (Stream::tf32).
/// A table may round bias to c's type first.
/// What goes with a layer's product, in the same call:
///   activated       = f(c), c as it is stored: computing it again from c gives the same bits
///   preactivation   c = op(a) op(b) f'(preactivation); a table may round the product before it
///                   multiplies, or after. Without accumulate and any of the others
///   row_sums        (+)= op(a) 1, a bias' gradient beside that of its weight: of a transposed a.
///                   A table may round the sums of one call to c's type before it adds them
/// With round_a and round_b (both or neither; not of fp16), elements x of that operand count as s q:
/// q is x (1 / s), in fp32, in that format, to nearest even, and s the operand's largest magnitude
/// over the format's largest number, at least 2^-126 (1 of zeros). An operand that is not finite
/// makes c NaN. row_sums are those of a as it is.
struct GemmArgs {
  Tensor a;       ///< [M, K], or [K, M] when transpose_a
  Tensor b;       ///< [K, N], or [N, K] when transpose_b
  Tensor c;       ///< [M, N]
  Tensor addend;  ///< [M, N] of c's type and stride, beside it; or empty
  Tensor bias;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  Activation activation = Activation::none;  ///< f
  Tensor activated;                          ///< [M, N] of c's type, both side by side; or empty
  Tensor preactivation;                      ///< likewise
  Tensor row_sums;                           ///< any [M], or empty
  bool accumulate_sums = false;
  Float8 round_a = Float8::none, round_b = Float8::none;
};

/// out [C] = sum over rows of x [R, C] (+ out when `accumulate`); x, out any. Sums are fp32 and
/// rounded once.
struct ColumnSumArgs {
  Tensor x, out;
  bool accumulate = false;
};

/// y = (x - mean) rstd * weight + bias by row, epsilon 1e-5. x fp32 [R, C]; y any; mean, rstd fp32
/// [R].
struct LayerNormArgs {
  Tensor x, weight, bias, y, mean, rstd;
};

/// dx += gradient of LayerNorm at x; dweight, dbias any [C] as well (added to when `accumulate`).
/// dy any [R, C]; x, dx fp32. With `rounded`, which may be dy, also rounded = dx in that type.
struct LayerNormBackwardArgs {
  Tensor dy, x, weight, mean, rstd, dx, dweight, dbias;
  bool accumulate = false;
  Tensor rounded;  ///< of the type of dy [R, C], or empty
};

/// y = f(x); any, same type; y may be x.
struct ActivationArgs {
  Activation kind = Activation::gelu;
  Tensor x, y;
};

/// dx = dy f'(x); dx may be dy.
struct ActivationBackwardArgs {
  Activation kind = Activation::gelu;
  Tensor dy, x, dx;
};

/// Causal self-attention, softmax(q kᵀ / sqrt(D)) v by head, by tiles with a running (online)
/// softmax: no more than one tile of scores exists. qkv any [B, T, 3C] (q, k, v beside each other,
/// head h at columns h D); out [B, T, C]; lse fp32 [B, H, T] = log of the sum of exponentials by
/// row.
struct AttentionArgs {
  Tensor qkv, out, lse;
  int heads = 1;
};

/// dqkv from dout; scores are computed again by tile (FlashAttention-2, algorithm 2).
struct AttentionBackwardArgs {
  Tensor qkv, out, lse, dout, dqkv;
  int heads = 1;
};

/// x [B, T, C] (fp32) = token[tokens] + position[0..T). token, position: any [V, C], [>= T, C].
struct EmbeddingArgs {
  Tensor tokens, token, position, x;
};

/// dtoken[tokens] += dx, dposition[t] += sum over b of dx. dx fp32; dtoken, dposition any: what one
/// call adds to an element is summed in fp32 first.
struct EmbeddingBackwardArgs {
  Tensor tokens, dx, dtoken, dposition;
};

/// By row: losses[r] = lse(logits[r]) - logits[r, target]; with `dlogits`, also
/// dlogits = scale (softmax(logits) - onehot). logits any [R, V]; dlogits any, may be logits;
/// targets int32 [R]; losses fp32 [R]. A row of a loss that is not finite has NaN in dlogits.
struct CrossEntropyArgs {
  Tensor logits, targets, losses, dlogits;
  float scale = 1;
};

/// y = x * keep / (1 - p), keep drawn by Philox(key, element index + offset); any; y may be x.
/// The same call with the same key is the backward of itself.
struct DropoutArgs {
  Tensor x, y;
  float probability = 0;
  uint64_t key = 0;
  int64_t offset = 0;
};

/// y = x converted; fp32 from and to any. With `accumulate`, y += x.
struct CastArgs {
  Tensor x, y;
  bool accumulate = false;
};

/// y = ((x[0] + x[1]) + x[2]) + …: the rows of x [p, n] in this order, in fp32, rounded once; any,
/// one type. Row `mine` is not read: y [n] holds it.
struct OrderedSumArgs {
  Tensor x, y;
  int64_t mine = 0;
};

/// y = a - b, fp32; with `finite`, zero where that is not a finite number; all zeros with a `factor`
/// that is not finite (AdamWArgs). y may be a or b.
struct DifferenceArgs {
  Tensor a, b, y;
  bool finite = false;
  Tensor factor;  ///< fp32 [1], or empty
};

/// x = value; any type.
struct FillArgs {
  Tensor x;
  float value = 0;
};

/// packed[k] (+)= dense[position k]. dense any [size], packed any [count].
struct GatherArgs {
  Tensor dense, packed;
  Positions positions;
  bool accumulate = false;
};

/// dense = 0 except dense[position k] = packed[k]. packed, dense any.
struct ScatterArgs {
  Tensor packed, dense;
  Positions positions;
};

/// The arrays of Csr, int32, from positions of a flattened [rows, cols].
struct CsrArgs {
  int64_t rows = 0, cols = 0;
  Positions positions;
  Tensor row_begin, column, column_begin, row, order;
};

/// y [R, N] (+)= x [R, K] Wᵀ + bias, for W [N, K]; with `activated`, also activated = f(y), y as it
/// is stored: computing it again from y gives the same bits.
/// x any, values of the same type; y fp32 or that type; bias fp32 [N] or empty; activated of x's
/// type or empty. Products are fp32 or exact pairs of bf16, sums fp32. Rows of x, y may be strided.
template <class Matrix>
struct SpmmOf {
  Matrix weight;
  Tensor x, y, bias;
  Activation activation = Activation::none;
  Tensor activated;
  bool accumulate = false;
};
using SpmmArgs = SpmmOf<SparseMatrix>;
using BlockSpmmArgs = SpmmOf<BlockMatrix>;

/// dx [R, K] (+)= dy [R, N] W; with `preactivation` (dx's shape, dy's type), the product is
/// multiplied by f'(preactivation) first. Types as above.
template <class Matrix>
struct SpmmTransposedOf {
  Matrix weight;
  Tensor dy, dx;
  Activation activation = Activation::none;
  Tensor preactivation;
  bool accumulate = false;
};
using SpmmTransposedArgs = SpmmTransposedOf<SparseMatrix>;
using BlockSpmmTransposedArgs = SpmmTransposedOf<BlockMatrix>;

/// weight.values (+)= dyᵀ x at the kept positions: the gradient of W, with its pattern. dy [R, N],
/// x [R, K] any, the same type; values any. Sums are fp32 and rounded once a call.
template <class Matrix>
struct SddmmOf {
  Matrix weight;
  Tensor dy, x;
  bool accumulate = false;
};
using SddmmArgs = SddmmOf<SparseMatrix>;
using BlockSddmmArgs = SddmmOf<BlockMatrix>;

/// Makes the rows of x, fp32 [r, n], orthonormal, from the first on: twice modified Gram-Schmidt in
/// double. A row that depends on those before it (what is left of it is 2^-18 of its length or less)
/// becomes zero; if any number is not finite, x is NaN somewhere afterwards.
struct OrthonormaliseArgs {
  Tensor x;
};

/// What PowerSGD keeps of a matrix [m, n] when its factors p, fp32 [r, m], and q, fp32 [r, n], have
/// been summed. Where all of both is finite: row k of `factor`, fp32 [r, n], becomes that of q, or
/// where row k of p is zero numbers 2 u - 1, of the uniform u of word i % 4 of Philox(key, k, i / 4).
/// Else `factor` stays, `error`, fp32 [m n], becomes zero, and `gradient`, any [m n], NaN.
struct KeepFactorArgs {
  Tensor p, q, factor, error, gradient;
  uint64_t key = 0;
};

template <class Args>
using Op = void (*)(Stream&, const Args&);

/// What an operation does for each of several arrays: as if one call came after the other, but none
/// may read or write what another one writes; sums that all add to are the exception.
template <class Args>
class Each : public std::span<const Args> {
 public:
  Each(const Args& one) : std::span<const Args>(&one, 1) {}
  Each(const std::vector<Args>& all) : std::span<const Args>(all) {}
  Each(std::span<const Args> all) : std::span<const Args>(all) {}
};
template <class Args>
using OpOfEach = void (*)(Stream&, Each<Args>);

struct Kernels {
  std::string_view name;
  /// Where its memory is and who does its work, for rank `local_rank` of a machine; null: the
  /// host's memory, and calls that are done when they return. Throws Failure where there is no such
  /// device.
  std::unique_ptr<Device> (*open)(int local_rank) = nullptr;
  /// A table for plans of runs on this one, for dry arenas: it counts as "dry" does, needs no
  /// device, and asks for the workspace that calls of this table would take. Null: "dry".
  const Kernels* plan = nullptr;
  Op<GemmArgs> gemm = nullptr;
  Op<ColumnSumArgs> column_sum = nullptr;
  Op<LayerNormArgs> layernorm = nullptr;
  Op<LayerNormBackwardArgs> layernorm_backward = nullptr;
  Op<ActivationArgs> activation = nullptr;
  Op<ActivationBackwardArgs> activation_backward = nullptr;
  Op<AttentionArgs> attention = nullptr;
  Op<AttentionBackwardArgs> attention_backward = nullptr;
  Op<EmbeddingArgs> embedding = nullptr;
  Op<EmbeddingBackwardArgs> embedding_backward = nullptr;
  Op<CrossEntropyArgs> cross_entropy = nullptr;
  Op<DropoutArgs> dropout = nullptr;
  Op<CastArgs> cast = nullptr;
  Op<OrderedSumArgs> ordered_sum = nullptr;
  Op<DifferenceArgs> difference = nullptr;
  Op<FillArgs> fill = nullptr;
  OpOfEach<SumSquaresArgs> sum_squares = nullptr;
  Op<ClipArgs> clip = nullptr;
  Op<GatherArgs> gather = nullptr;
  Op<ScatterArgs> scatter = nullptr;
  Op<CsrArgs> csr = nullptr;
  Op<SpmmArgs> spmm = nullptr;
  Op<SpmmTransposedArgs> spmm_transposed = nullptr;
  Op<SddmmArgs> sddmm = nullptr;
  Op<BlockSpmmArgs> block_spmm = nullptr;
  Op<BlockSpmmTransposedArgs> block_spmm_transposed = nullptr;
  Op<BlockSddmmArgs> block_sddmm = nullptr;
  Op<QuantizeArgs> quantize = nullptr;
  Op<DequantizeArgs> dequantize = nullptr;
  Op<EncodeArgs> encode = nullptr;
  Op<DecodeArgs> decode = nullptr;
  OpOfEach<AdamWArgs> adamw = nullptr;
  OpOfEach<SgdArgs> sgd = nullptr;
  Op<PredictArgs> predict = nullptr;
  Op<OrthonormaliseArgs> orthonormalise = nullptr;
  Op<KeepFactorArgs> keep_factor = nullptr;
};

/// All tables of this build that run on this machine: those of the CPU, fastest first; "cuda",
/// which takes device memory and a stream with a queue, so that nobody gets it unasked; "dry" last.
std::vector<const Kernels*> available();

/// "auto" = the first of `available()`; "cpu" = the fastest CPU table. Environment ESPALIER_KERNELS
/// overrides "auto" and "cpu". Throws Failure that lists the names.
const Kernels& by_name(std::string_view name);

/// Flops and bytes that the "dry" table has counted on this thread since the last reset.
struct DryCount {
  double flops = 0;
  double bytes = 0;
};
DryCount& dry_count();

/// Version of the library behind the GEMMs, for `espalier info`.
std::string gemm_library();

/// True where bf16 GEMMs run natively (AVX-512 BF16 or AMX).
bool has_native_bf16();

}  // namespace espalier::kernels
