#pragma once
// Self-attention between its input and the projection of its output, with their parameters.
//
//   q = x Wqᵀ + bq [R, H D], k = x Wkᵀ + bk [R, K D], v likewise     side by side in qkv
//   q, k = rotate(norm by head(q, k))                                if options say so
//   y = attention(q, k, v) Woᵀ + bo
//
// H heads of width D read K heads of keys and values: head h reads head h K / H (grouped queries,
// Ainslie and others 2023). It keeps no activations: callers pass what backward needs.
#include <string>
#include <vector>

#include "src/model/layers/linear.h"
#include "src/model/layers/rotary.h"

namespace espalier::model {

class Attention {
 public:
  struct Options {
    int64_t tokens = 1;      ///< T
    int64_t width = 1;       ///< C
    int64_t heads = 1;       ///< H
    int64_t kv_heads = 0;    ///< K, divides H; 0: H
    int64_t head_width = 0;  ///< D; 0: C / H
    int64_t blocks = 1;      ///< of the network, for initial weights
    bool causal = true;      ///< false: each token attends to all
    int64_t window = 0;      ///< tokens that a token attends to, itself included; 0: all
    double scale = 0;        ///< of scores; 0: 1 / sqrt(D)
    bool fused = true;       ///< q, k and v are one matrix of 3 C rows; K = H
    bool bias = true;        ///< of q, k and v
    bool output_bias = true;
    RotaryOptions rotary{};
    bool head_norm = false;  ///< RMSNorm of each head of q and k
    double norm_epsilon = 1e-5;

    double score_scale() const;
  };
  /// Parameters NAME.qkv.weight, or NAME.query.weight [H D, C], NAME.key.weight [K D, C] and
  /// NAME.value.weight; NAME.query_norm.weight [D], NAME.key_norm.weight; NAME.projection.weight
  /// [C, H D]; and biases.
  Attention(const std::string& name, const Options& options);

  std::vector<sparse::ParameterSpec> parameters() const;
  void bind(sparse::Store& store, const kernels::Kernels& kernels);

  struct Saved {
    Tensor qkv;         ///< [B, T, (H + 2 K) D], as the attention reads it
    Tensor out;         ///< [B, T, H D], before the projection
    Tensor lse;         ///< [B, H, T]
    Tensor heads;       ///< [B, T, (H + K) D], q and k before their norms; else empty
    Tensor query_rstd;  ///< [R H], of their norms
    Tensor key_rstd;    ///< [R K]
  };
  /// Pushes what backward needs.
  Saved prepare(Pass& pass, int64_t sequences, int64_t tokens) const;
  /// saved.qkv from x [R, C].
  void project(Pass& pass, const Tensor& x, const Saved& saved);
  /// saved.out and, unless each sequence has one token and a cache, saved.lse from saved.qkv. With
  /// pass.cached, keys and values go to the cache.
  void attend(Pass& pass, const Saved& saved) const;
  Linear& projection() { return projection_; }

  /// The gradient of saved.qkv, on the tape, from that of the projection's output; accumulates the
  /// gradients of the projection.
  Tensor backward_attend(Pass& pass, const Saved& saved, const Tensor& dy);
  /// dx [R, C] = gradient of x from that of saved.qkv, which it overwrites; accumulates the
  /// gradients of q, k and v. `dx` may be x.
  void backward_project(Pass& pass, const Saved& saved, const Tensor& x, const Tensor& dqkv,
                        const Tensor& dx);

 private:
  /// A linear map that writes columns [first, first + out) of qkv.
  struct Columns {
    Linear linear;
    int64_t first = 0;
    int64_t heads = 0;
    std::string norm{};                   ///< name of the weight of the heads' norm; empty: none
    sparse::Parameter* weight = nullptr;  ///< that parameter
    Tensor Saved::*rstd = nullptr;
  };
  static std::vector<Columns> columns_of(const std::string& name, const Options& options);
  bool attend_cached(Pass& pass, const Saved& saved) const;
  void rotate(Pass& pass, const Tensor& qkv, bool inverse) const;

  Options options_;
  std::vector<Columns> maps_;  ///< qkv; or q, k, v
  Linear projection_;
  sparse::Store* store_ = nullptr;
  Tensor cosines_, sines_;
};

}  // namespace espalier::model
