// Attention by tiles. One (sequence, head) pair at a time: q, k, v are packed to panels that fit
// L2; score tiles of kQueryTile x kKeyTile are on the stack. Causal attention computes only tiles
// on or below the diagonal. Softmax and all sums are fp32. In bf16, if the instruction set
// multiplies pairs, the operands of every product are bf16, including probabilities. Source: Dao,
// FlashAttention-2 (2023), algorithms 1 and 2.
#include "src/kernels/cpu/attention/products.h"
#include "src/kernels/cpu/attention/rows.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

/// Running softmax of a query tile: each row's maximum and sum over the keys so far.
struct Softmax {
  float maximum[kQueryTile];
  float sum[kQueryTile];
  float shrink[kQueryTile];  ///< factor of the sums from before the last tile

  Softmax() {
    for (int64_t i = 0; i < kQueryTile; ++i) {
      maximum[i] = -__builtin_inff();
      sum[i] = 0.0F;
    }
  }

  /// Replaces scores by exp(scale score - maximum). Three passes, row by row, so that rows hide
  /// each other's latency.
  void add(const Tile& tile, float scale, float* scores) {
    alignas(64) float parts[kQueryTile * kPad] = {};
    float tops[kQueryTile];
    for (int64_t i = 0; i < tile.queries; ++i) {
      mask_last(scores + i * kKeyTile, tile.visible(i));
      fold_blocks(scores + i * kKeyTile, padded(tile.visible(i)), parts + i * kPad, Greater{});
    }
    set_all(tops, kQueryTile, -__builtin_inff());
    fold_rows(parts, tops, Greater{});
    for (int64_t i = 0; i < tile.queries; ++i) {
      const float top = scale * tops[i] > maximum[i] ? scale * tops[i] : maximum[i];
      shrink[i] = __builtin_expf(maximum[i] - top);
      maximum[i] = top;
      float* row = scores + i * kKeyTile;
      const int64_t end = padded(tile.visible(i));
      for (int64_t j = 0; j < end; j += kPad) {
        for (int64_t l = j; l < j + kPad; ++l) {
          row[l] = exp_below(scale * row[l] - top);
        }
      }
      fold_blocks(row, end, parts + i * kPad, Sum{});
      set_all(row + end, tile.keys - end, 0.0F);
    }
    set_all(tops, kQueryTile, 0.0F);
    fold_rows(parts, tops, Sum{});
    for (int64_t i = 0; i < tile.queries; ++i) {
      sum[i] = sum[i] * shrink[i] + tops[i];
    }
  }
};

void forward_head(const Products& products, const float* q, const float* kt, const float* v,
                  float* out, float* lse) {
  const Head& head = products.head;
  alignas(64) float scores[kTile];
  alignas(64) float words[kTile];
  for (int64_t q0 = 0; q0 < head.tokens; q0 += kQueryTile) {
    const int64_t queries = least(kQueryTile, head.tokens - q0);
    Softmax softmax;
    const int64_t end = head.keys_before(q0 + queries);
    for (int64_t k0 = 0; k0 < end; k0 += kKeyTile) {
      const Tile tile = tile_at(head, q0, k0);
      products.scores(tile, q, kt, scores);
      softmax.add(tile, head.score_scale(), scores);
      for (int64_t i = 0; k0 > 0 && i < queries; ++i) {
        scale_all(out + (q0 + i) * head.padded_width, head.padded_width, softmax.shrink[i]);
      }
      const float* p = products.math.along_keys({queries, tile.keys, scores}, words);
      products.along_keys(tile, p, v, out, k0 > 0);
    }
    for (int64_t i = 0; i < queries; ++i) {
      scale_all(out + (q0 + i) * head.padded_width, head.padded_width, 1.0F / softmax.sum[i]);
      lse[q0 + i] = softmax.maximum[i] + __builtin_logf(softmax.sum[i]);
    }
  }
}

/// Panels of the backward pass of one head.
struct BackwardPanels {
  float *q, *q_joined, *k_joined, *kt, *vt, *dout, *dout_joined;
  float *dq, *dk, *dv, *delta;
};

/// Replaces scores by probabilities and dp by the gradient of the scores.
void score_gradient(const Tile& tile, float scale, const float* lse, const float* delta,
                    float* scores, float* dp) {
  for (int64_t i = 0; i < tile.queries; ++i) {
    float* p = scores + i * kKeyTile;
    float* ds = dp + i * kKeyTile;
    const int64_t visible = tile.visible(i);
    const float row_lse = lse[tile.q0 + i];
    const float row_delta = delta[tile.q0 + i];
    for (int64_t j = 0; j < visible; j += kPad) {
      for (int64_t l = j; l < j + kPad; ++l) {
        p[l] = exp_approx(scale * p[l] - row_lse);
        ds[l] = p[l] * (ds[l] - row_delta);
      }
    }
    set_all(p + visible, tile.keys - visible, 0.0F);
    set_all(ds + visible, tile.keys - visible, 0.0F);
  }
}

void backward_tile(const Products& products, const Tile& tile, const BackwardPanels& p,
                   const float* lse) {
  alignas(64) float scores[kTile];
  alignas(64) float dscores[kTile];
  alignas(64) float words[kTile];
  const TileMath& math = products.math;
  products.scores(tile, p.q, p.kt, scores);
  products.scores(tile, p.dout, p.vt, dscores);
  score_gradient(tile, products.head.score_scale(), lse, p.delta, scores, dscores);
  const TileValues probabilities{tile.queries, tile.keys, scores};
  const TileValues gradient{tile.queries, tile.keys, dscores};
  products.along_queries(tile, math.along_queries(probabilities, words), p.dout_joined, p.dv);
  products.along_queries(tile, math.along_queries(gradient, words), p.q_joined, p.dk);
  products.along_keys(tile, math.along_keys(gradient, words), p.k_joined, p.dq, true);
}

template <class T>
void forward(Stream& stream, const AttentionArgs& args) {
  const TileMath& math = math_for(args.qkv.dtype);
  const Head head = head_of(args.qkv, args.heads, args.causal, math);
  const int64_t columns = args.qkv.cols() / 3;
  const int64_t pairs = args.qkv.shape[0] * args.heads;
  const int64_t floats = 4 * head.panel();
  auto* panels = reinterpret_cast<float*>(
      cpu::workspace(stream, static_cast<size_t>(stream.threads() * floats) * sizeof(float)));
  if (cpu::is_dry(stream)) {
    return;
  }
  const T* qkv = args.qkv.get<T>();
  T* out = args.out.get<T>();
  float* lse = args.lse.get<float>();
#pragma omp parallel for num_threads(stream.threads()) schedule(static) if (pairs > 1)
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const int64_t sequence = pair / args.heads;
    const int64_t first = (pair % args.heads) * head.width;
    const T* x = qkv + sequence * head.tokens * 3 * columns + first;
    float* q = panels + thread_index() * floats;
    float* kt = q + head.panel();
    float* v = kt + head.panel();
    float* result = v + head.panel();
    pack_rows(head, x, 3 * columns, head.query_scale(), q);
    pack_rows(head, x + columns, 3 * columns, 1.0F, result);
    transpose_rows(head, result, kt);
    pack_rows(head, x + 2 * columns, 3 * columns, 1.0F, head.elements == 1 ? v : result);
    if (head.elements == 2) {
      join_rows(head, result, v);
    }
    forward_head({head, math}, q, kt, v, result, lse + pair * head.tokens);
    unpack(head, result, 1.0F, out + sequence * head.tokens * columns + first, columns);
  }
}

/// Panels of a head in `memory`, of backward_floats().
BackwardPanels backward_panels(const Head& head, float* memory) {
  const int64_t operand = head.padded_tokens * head.row();
  const auto take = [&](int64_t floats) {
    float* taken = memory;
    memory += floats;
    return taken;
  };
  BackwardPanels p{};
  p.q = take(operand);
  p.k_joined = take(operand);
  p.kt = take(operand);
  p.vt = take(operand);
  p.dout = take(operand);
  p.q_joined = head.elements == 1 ? p.q : take(operand);
  p.dout_joined = head.elements == 1 ? p.dout : take(operand);
  p.dq = take(head.panel());
  p.dk = take(head.panel());
  p.dv = take(head.panel());
  p.delta = take(head.padded_tokens);
  return p;
}

int64_t backward_floats(const Head& head) { return 8 * head.panel() + head.padded_tokens; }

template <class T>
void pack_backward(const Head& head, const AttentionBackwardArgs& args, int64_t pair,
                   const BackwardPanels& p) {
  const int64_t columns = args.qkv.cols() / 3;
  const int64_t sequence = pair / args.heads;
  const int64_t first = (pair % args.heads) * head.width;
  const T* x = args.qkv.get<T>() + sequence * head.tokens * 3 * columns + first;
  const T* out = args.out.get<T>() + sequence * head.tokens * columns + first;
  const T* dout = args.dout.get<T>() + sequence * head.tokens * columns + first;
  float* k = head.elements == 1 ? p.k_joined : p.dk;
  pack_rows(head, x, 3 * columns, head.query_scale(), p.q);
  pack_rows(head, x + columns, 3 * columns, 1.0F, k);
  pack_rows(head, x + 2 * columns, 3 * columns, 1.0F, p.dv);
  pack_rows(head, dout, columns, 1.0F, p.dout);
  transpose_rows(head, k, p.kt);
  transpose_rows(head, p.dv, p.vt);
  if (head.elements == 2) {
    join_rows(head, p.q, p.q_joined);
    join_rows(head, k, p.k_joined);
    join_rows(head, p.dout, p.dout_joined);
  }
  dot_rows(head, out, dout, columns, p.delta);
  set_all(p.dq, 3 * head.panel(), 0.0F);  // dq, dk, dv are contiguous
}

template <class T>
void backward(Stream& stream, const AttentionBackwardArgs& args) {
  const TileMath& math = math_for(args.qkv.dtype);
  const Head head = head_of(args.qkv, args.heads, args.causal, math);
  const int64_t columns = args.qkv.cols() / 3;
  const int64_t pairs = args.qkv.shape[0] * args.heads;
  const int64_t floats = backward_floats(head);
  auto* memory = reinterpret_cast<float*>(
      cpu::workspace(stream, static_cast<size_t>(stream.threads() * floats) * sizeof(float)));
  if (cpu::is_dry(stream)) {
    return;
  }
  const float* lse = args.lse.get<float>();
  T* dqkv = args.dqkv.get<T>();
#pragma omp parallel for num_threads(stream.threads()) schedule(static) if (pairs > 1)
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const BackwardPanels p = backward_panels(head, memory + thread_index() * floats);
    pack_backward<T>(head, args, pair, p);
    for (int64_t q0 = 0; q0 < head.tokens; q0 += kQueryTile) {
      const int64_t end = head.keys_before(least(q0 + kQueryTile, head.tokens));
      for (int64_t k0 = 0; k0 < end; k0 += kKeyTile) {
        backward_tile({head, math}, tile_at(head, q0, k0), p, lse + pair * head.tokens);
      }
    }
    T* dx =
        dqkv + (pair / args.heads) * head.tokens * 3 * columns + (pair % args.heads) * head.width;
    unpack(head, p.dq, head.scale, dx, 3 * columns);
    unpack(head, p.dk, head.score_scale(), dx + columns, 3 * columns);
    unpack(head, p.dv, 1.0F, dx + 2 * columns, 3 * columns);
  }
}

}  // namespace

void attention(Stream& stream, const AttentionArgs& args) {
  with_type(args.qkv.dtype, [&](auto type) { forward<decltype(type)>(stream, args); });
}

void attention_backward(Stream& stream, const AttentionBackwardArgs& args) {
  with_type(args.qkv.dtype, [&](auto type) { backward<decltype(type)>(stream, args); });
}

}  // namespace espalier::kernels::ESPALIER_ISA
