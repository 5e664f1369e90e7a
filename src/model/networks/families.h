#pragma once
// Families of decoder-only transformers: the choices that all models of a family share. Their
// numbers are keys of [model]. docs/decoders.md describes them.
#include "io/config/config.h"
#include "src/core/registry.h"
#include "src/model/layers/embedding.h"
#include "src/model/layers/head.h"
#include "src/model/layers/transformer.h"

namespace espalier::model {

struct Family {
  std::string_view name;
  std::string_view help;
  std::string_view norm;        ///< a name of norms()
  double norm_epsilon = 1e-5;   ///< default of model.family:norm_epsilon
  std::string_view activation;  ///< default of model.family:activation, a name of activations()
  bool gated = false;           ///< MLP: f(gate) * up
  bool fused = false;           ///< queries, keys and values are one matrix
  bool bias = false;            ///< of queries, keys and values
  bool output_bias = false;     ///< of the attention's projection
  bool mlp_bias = false;
  bool head_norm = false;         ///< of queries and keys
  bool parallel = false;          ///< attention and MLP read the same stream
  bool post_norm = false;         ///< the outputs of attention and MLP have norms, too
  double rotary_base = 0;         ///< default of model.rotary:base; 0: learned positions
  double local_rotary_base = 0;   ///< default of model.rotary:local_base; 0: as rotary_base
  double rotary_share = 1;        ///< default of model.rotary:share
  bool scaled_embedding = false;  ///< times sqrt(width)
};

Registry<Family> families();

/// The options of a decoder's layers. `vocabulary`: of the data.
struct Decoder {
  Embedding::Options embedding;
  TransformerBlock::Options block;  ///< before block_at applies the two numbers below
  Head::Options head;
  int64_t full_every = 0;
  double local_rotary_base = 0;

  TransformerBlock::Options block_at(int64_t number) const;
  /// residual and biases of model.family with "auto" resolved; biases: "auto" if the attention has
  /// any.
  std::string residual() const { return block.parallel ? "parallel" : "sequential"; }
  std::string biases() const {
    const bool attention = block.attention.bias || block.attention.output_bias;
    return attention ? "auto" : block.mlp.bias ? "mlp" : "none";
  }
};
/// Throws Failure, with the fix, if keys contradict each other.
Decoder decoder_of(const io::ModelConfig& config, int64_t vocabulary);
/// The same for kind "gpt": GPT-2 with any norm and head.
Decoder gpt_of(const io::ModelConfig& config, int64_t vocabulary);

}  // namespace espalier::model
