// Attention by tiles. One (sequence, head) pair at a time: q, k, v are packed to panels that fit
// L2; score tiles of kQueryTile x kKeyTile are on the stack. Causal attention computes only tiles
// on or below the diagonal, and within the window. Softmax and all sums are fp32. In bf16, if the
// instruction set multiplies pairs, the operands of every product are bf16, including
// probabilities. Source: Dao, FlashAttention-2 (2023), algorithms 1 and 2.
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
  /// each other's latency. kWindow: a row may see none of the tile's keys.
  template <bool kWindow>
  void add(const Tile& tile, float scale, float* scores) {
    alignas(64) float parts[kQueryTile * kPad] = {};
    float tops[kQueryTile];
    for (int64_t i = 0; i < tile.queries; ++i) {
      float* row = scores + i * kKeyTile;
      const int64_t visible = tile.visible(i);
      const int64_t start = mask_first(row, tile.first<kWindow>(i));
      mask_last(row, visible);
      fold_blocks(row + start, padded(visible) - start, parts + i * kPad, Greater{});
    }
    set_all(tops, kQueryTile, -__builtin_inff());
    fold_rows(parts, tops, Greater{});
    for (int64_t i = 0; i < tile.queries; ++i) {
      const float top = scale * tops[i] > maximum[i] ? scale * tops[i] : maximum[i];
      const int64_t first = tile.first<kWindow>(i);
      const int64_t visible = tile.visible(i);
      const bool sees_any = !kWindow || first < visible;
      shrink[i] = sees_any ? __builtin_expf(maximum[i] - top) : 1.0F;
      maximum[i] = top;
      float* row = scores + i * kKeyTile;
      const int64_t start = first / kPad * kPad;
      const int64_t end = padded(visible);
      set_all(row, start, 0.0F);
      for (int64_t j = start; j < end; j += kPad) {
        for (int64_t l = j; l < j + kPad; ++l) {
          row[l] = exp_below(scale * row[l] - top);
        }
      }
      fold_blocks(row + start, end - start, parts + i * kPad, Sum{});
      set_all(row + end, tile.keys - end, 0.0F);
    }
    set_all(tops, kQueryTile, 0.0F);
    fold_rows(parts, tops, Sum{});
    for (int64_t i = 0; i < tile.queries; ++i) {
      sum[i] = sum[i] * shrink[i] + tops[i];
    }
  }
};

template <bool kWindow>
void forward_head(const Products& products, const float* q, const float* kt, const float* v,
                  float* out, float* lse) {
  const Head& head = products.head;
  alignas(64) float scores[kTile];
  alignas(64) float words[kTile];
  for (int64_t q0 = 0; q0 < head.tokens; q0 += kQueryTile) {
    const int64_t queries = least(kQueryTile, head.tokens - q0);
    Softmax softmax;
    const int64_t begin = head.keys_from(q0);
    const int64_t end = head.keys_before(q0 + queries);
    for (int64_t k0 = begin; k0 < end; k0 = tile_after(k0)) {
      const Tile tile = tile_at(head, q0, k0);
      products.scores(tile, q, kt, scores);
      softmax.add<kWindow>(tile, head.score_scale(), scores);
      for (int64_t i = 0; k0 > begin && i < queries; ++i) {
        scale_all(out + (q0 + i) * head.padded_width, head.padded_width, softmax.shrink[i]);
      }
      const TileWords p = products.math.along_keys({queries, tile.keys, scores}, words);
      products.along_keys(tile, p, v, out, k0 > begin);
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
template <bool kWindow>
void score_gradient(const Tile& tile, float scale, const float* lse, const float* delta,
                    float* scores, float* dp) {
  for (int64_t i = 0; i < tile.queries; ++i) {
    float* p = scores + i * kKeyTile;
    float* ds = dp + i * kKeyTile;
    const int64_t first = tile.first<kWindow>(i);
    const int64_t visible = tile.visible(i);
    const float row_lse = lse[tile.q0 + i];
    const float row_delta = delta[tile.q0 + i];
    for (int64_t j = first / kPad * kPad; j < visible; j += kPad) {
      for (int64_t l = j; l < j + kPad; ++l) {
        p[l] = exp_approx(scale * p[l] - row_lse);
        ds[l] = p[l] * (ds[l] - row_delta);
      }
    }
    set_all(p, first, 0.0F);
    set_all(ds, first, 0.0F);
    set_all(p + visible, tile.keys - visible, 0.0F);
    set_all(ds + visible, tile.keys - visible, 0.0F);
  }
}

template <bool kWindow>
void backward_tile(const Products& products, const Tile& tile, const BackwardPanels& p,
                   const float* lse) {
  alignas(64) float scores[kTile];
  alignas(64) float dscores[kTile];
  alignas(64) float words[kTile];
  const TileMath& math = products.math;
  products.scores(tile, p.q, p.kt, scores);
  products.scores(tile, p.dout, p.vt, dscores);
  score_gradient<kWindow>(tile, products.head.score_scale(), lse, p.delta, scores, dscores);
  const TileValues probabilities{tile.queries, tile.keys, scores};
  const TileValues gradient{tile.queries, tile.keys, dscores};
  products.along_queries(tile, math.along_queries(probabilities, words), p.dout_joined, p.dv);
  products.along_queries(tile, math.along_queries(gradient, words), p.q_joined, p.dk);
  products.along_keys(tile, math.along_keys(gradient, words), p.k_joined, p.dq, true);
}

template <class T>
void forward(Stream& stream, const AttentionArgs& args) {
  const TileMath& math = math_for(args.qkv.dtype);
  const Layout layout = layout_of(args);
  const Head head = head_of(args, layout, math);
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
  const int64_t columns = layout.qkv_columns();
#pragma omp parallel num_threads(stream.threads()) if (pairs > 1)
  {
    const TileSession session(math);
    int64_t packed = -1;  // the group whose k and v the thread's panels hold
#pragma omp for schedule(static)
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const int64_t sequence = pair / layout.heads;
      const int64_t group = pair / layout.group();
      float* q = panels + thread_index() * floats;
      float* kt = q + head.panel();
      float* v = kt + head.panel();
      float* result = v + head.panel();
      pack_rows(head, qkv + layout.query(sequence, pair % layout.heads), columns,
                head.query_scale(), q);
      if (group != packed) {
        const int64_t kv_head = group % layout.kv_heads;
        const T* values = qkv + layout.value(sequence, kv_head);
        pack_rows(head, qkv + layout.key(sequence, kv_head), columns, 1.0F, result);
        transpose_rows(head, result, kt);
        pack_rows(head, values, columns, 1.0F, head.elements == 1 ? v : result);
        if (head.elements == 2) {
          join_rows(head, result, v);
        }
        packed = group;
      }
      const auto run = head.window > 0 ? forward_head<true> : forward_head<false>;
      run({head, math}, q, kt, v, result, lse + pair * head.tokens);
      unpack(head, result, 1.0F, out + layout.out(sequence, pair % layout.heads),
             layout.out_columns());
    }
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

/// Packs k and v; dk = dv = 0.
template <class T>
void pack_keys(const Head& head, const T* keys, const T* values, int64_t stride,
               const BackwardPanels& p) {
  float* k = head.elements == 1 ? p.k_joined : p.dk;
  pack_rows(head, keys, stride, 1.0F, k);
  pack_rows(head, values, stride, 1.0F, p.dv);
  transpose_rows(head, k, p.kt);
  transpose_rows(head, p.dv, p.vt);
  if (head.elements == 2) {
    join_rows(head, k, p.k_joined);
  }
  set_all(p.dk, 2 * head.panel(), 0.0F);  // dk, dv are contiguous
}

/// Packs q and dout, sums out dout by row; dq = 0.
template <class T>
void pack_queries(const Head& head, const Layout& layout, const AttentionBackwardArgs& args,
                  int64_t pair, const BackwardPanels& p) {
  const int64_t sequence = pair / layout.heads;
  const int64_t at = layout.out(sequence, pair % layout.heads);
  const T* out = args.out.get<T>() + at;
  const T* dout = args.dout.get<T>() + at;
  pack_rows(head, args.qkv.get<T>() + layout.query(sequence, pair % layout.heads),
            layout.qkv_columns(), head.query_scale(), p.q);
  pack_rows(head, dout, layout.out_columns(), 1.0F, p.dout);
  if (head.elements == 2) {
    join_rows(head, p.q, p.q_joined);
    join_rows(head, p.dout, p.dout_joined);
  }
  dot_rows(head, out, dout, layout.out_columns(), p.delta);
  set_all(p.dq, head.panel(), 0.0F);
}

template <bool kWindow>
void backward_head(const Products& products, const BackwardPanels& p, const float* lse) {
  const Head& head = products.head;
  for (int64_t q0 = 0; q0 < head.tokens; q0 += kQueryTile) {
    const int64_t end = head.keys_before(least(q0 + kQueryTile, head.tokens));
    for (int64_t k0 = head.keys_from(q0); k0 < end; k0 = tile_after(k0)) {
      backward_tile<kWindow>(products, tile_at(head, q0, k0), p, lse);
    }
  }
}

/// A thread has all query heads of a group, so that it sums dk and dv in their order.
template <class T>
void backward(Stream& stream, const AttentionBackwardArgs& args) {
  const TileMath& math = math_for(args.qkv.dtype);
  const Layout layout = layout_of(args);
  const Head head = head_of(args, layout, math);
  const int64_t groups = args.qkv.shape[0] * layout.kv_heads;
  const int64_t floats = backward_floats(head);
  auto* memory = reinterpret_cast<float*>(
      cpu::workspace(stream, static_cast<size_t>(stream.threads() * floats) * sizeof(float)));
  if (cpu::is_dry(stream)) {
    return;
  }
  const float* lse = args.lse.get<float>();
  const T* qkv = args.qkv.get<T>();
  T* dqkv = args.dqkv.get<T>();
  const int64_t columns = layout.qkv_columns();
#pragma omp parallel for num_threads(stream.threads()) schedule(static) if (groups > 1)
  for (int64_t group = 0; group < groups; ++group) {
    const TileSession session(math);
    const BackwardPanels p = backward_panels(head, memory + thread_index() * floats);
    const int64_t sequence = group / layout.kv_heads;
    const int64_t keys = layout.key(sequence, group % layout.kv_heads);
    const int64_t values = layout.value(sequence, group % layout.kv_heads);
    pack_keys(head, qkv + keys, qkv + values, columns, p);
    for (int64_t pair = group * layout.group(); pair < (group + 1) * layout.group(); ++pair) {
      pack_queries<T>(head, layout, args, pair, p);
      const auto run = head.window > 0 ? backward_head<true> : backward_head<false>;
      run({head, math}, p, lse + pair * head.tokens);
      unpack(head, p.dq, head.scale, dqkv + layout.query(sequence, pair % layout.heads), columns);
    }
    unpack(head, p.dk, head.score_scale(), dqkv + keys, columns);
    unpack(head, p.dv, 1.0F, dqkv + values, columns);
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
