#pragma once
// The configuration of a run: plain structs, read by every layer. A member's initialiser is the
// default. src/config/ holds the schema (name, limits and help of each key), the parser, --set,
// dumps and validation.
//
// Paths in a config are relative to the working directory.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "io/config/patterned.h"

namespace espalier::io {

/// Of a number that the program chooses: "auto".
inline constexpr double kAutomatic = std::numeric_limits<double>::lowest();

struct ModelConfig {
  std::string kind = "gpt";
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t width = 128;
  int64_t context = 64;
  bool tie_embeddings = false;
  double dropout = 0.0;
  int64_t mlp_ratio = 4;
  std::string norm = "layernorm";
  std::vector<int64_t> hidden{256, 256};  ///< widths of the hidden layers of "mlp"
  std::vector<std::string> network{"conv 16 3", "max 2", "conv 32 3", "max 2"};  ///< of "vision"
  std::vector<int64_t> image{28, 28, 1};  ///< of "vision": height, width, channels
  int64_t classes = 0;                    ///< of images; 0: from the data
  int64_t vocabulary = 0;                 ///< 0: from the data
  // Of "decoder" (src/model/networks/families.h); 0 or "auto": the family's.
  std::string family = "llama";
  int64_t kv_heads = 0;    ///< heads of keys and values; 0: heads
  int64_t head_width = 0;  ///< features of a head; 0: width / heads
  int64_t mlp_width = 0;   ///< hidden width of a block's MLP; 0: mlp_ratio * width
  std::string activation = "auto";
  std::string residual = "auto";  ///< "sequential", or "parallel": both branches read one stream
  std::string biases = "auto";    ///< of the family's: "mlp": only those of MLPs; "none"
  double norm_epsilon = 0;
  int64_t window = 0;      ///< tokens that a token attends to, itself included; 0: all before it
  int64_t full_every = 0;  ///< n: blocks n, 2 n, … have no window; 0: all have it
  double attention_scale = 0;    ///< of scores; 0: 1 / sqrt(head_width)
  double rotary_base = 0;        ///< rotary positions: src/model/layers/rotary.h
  double local_rotary_base = 0;  ///< of blocks with a window, without scaling
  double rotary_share = 0;       ///< of the features of a head
  std::string rotary_scaling = "none";
  double rotary_factor = 1;
  int64_t rotary_context = 0;  ///< before scaling; 0: context
  double rotary_low = 1;
  double rotary_high = 0;  ///< 0: the scaling's
  double rotary_gain = 0;  ///< likewise
};

struct DataConfig {
  std::string kind = "bytes";
  std::vector<std::string> train{};
  std::vector<std::string> validation{};  ///< empty: the last `validation_fraction` of `train`
  double validation_fraction = 0.1;
  std::string token_type = "auto";  ///< of headerless files of kind "tokens"
  // Of kind "images":
  std::string format = "idx";
  std::vector<double> mean{};       ///< one, or one per channel; empty: 0
  std::vector<double> deviation{};  ///< likewise; empty: 1
  int64_t crop = 0;                 ///< pixels around an image, in which training cuts windows
  bool flip = false;                ///< training mirrors half of the images
  std::string order = "random";
};

struct TrainConfig {
  int64_t steps = 1000;
  int64_t global_batch = 12;  ///< sequences a step, over all ranks
  int64_t micro_batch = 0;    ///< sequences a forward; 0: the rank's share, or what fits
  std::string dtype = "fp32";
  std::string gradient_dtype = "auto";
  bool master_copy = true;  ///< false: of matrices in 16 bits no more than their values
  double label_smoothing = 0;
  double loss_scale = 0;  ///< of gradients until the update; 0: a moving one in fp16, else none
  int64_t seed = 1;
  int64_t eval_every = 250;      ///< steps; 0: at the end only
  int64_t eval_batches = 100;    ///< global batches; 0: all validation samples
  int64_t checkpoint_every = 0;  ///< steps; 0: at the end only; -1: never
  int64_t keep_checkpoints = 2;
  bool checkpoint_background = true;  ///< written from a copy, where memory_budget allows one
  std::string recompute = "none";
  bool tf32 = false;            ///< of a device: dense products of fp32 in TF32
  std::string memory_budget{};  ///< "", or a size such as "16GiB" (parse_bytes)
  std::string parametrization = "supar-lr";
  int64_t base_width = 0;        ///< for which the learning rate is tuned; 0: the network's
  bool sync_batch_norm = false;  ///< statistics of all replicas' micro-batches
  std::string teacher{};         ///< checkpoint of a network to learn from; empty: none
  double teacher_weight = 0.5;
  double teacher_temperature = 1;
};

struct OptimizerConfig {
  std::string kind = "adamw";
  double lr = kAutomatic;  ///< with_learning_rate, src/optim/schedule.h
  double min_lr = 1e-4;
  int64_t warmup_steps = 100;
  std::string schedule = "cosine";
  std::vector<int64_t> decay_at{};  ///< of schedule "step": steps
  double decay_factor = 0.1;        ///< of schedule "step"
  double power = 2;                 ///< of schedule "polynomial"
  double decay_share = 0.2;         ///< of schedule "wsd"
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double momentum = 0.9;
  bool nesterov = false;  ///< of "sgd"
  double weight_decay = 0.1;
  double clip = 1.0;  ///< global gradient norm; 0: off
  int64_t state_bits = 32;
  bool offload = false;  ///< of a device: optimizer state in pinned memory of the host
};

struct PruningConfig {
  std::string method = "none";
  double sparsity = 0.9;
  int64_t at_step = -1;
  int64_t from_step = -1;  ///< gradual when from_step and to_step are given
  int64_t to_step = -1;    ///< also the end of moving masks
  int64_t every = 0;       ///< steps between two changes of masks; 0: the method's default
  double drop_fraction = 0.3;
  std::string distribution = "erk";
  std::string scope = "auto";          ///< Method::scope
  std::vector<std::string> exclude{};  ///< globs of parameter names, besides those never pruned
  int64_t n = 2;
  int64_t m = 4;
  int64_t block = 16;
  int64_t score_batches = 4;      ///< of methods that score elements by gradients
  std::string file{};             ///< of method "file"
  std::string dense_from_step{};  ///< pruning/regrowth.h; empty: masks never grow back

  bool prunes() const { return method != "none"; }
  bool gradual() const { return from_step >= 0 && to_step >= 0; }
  /// The step after which moving masks stay, in a run of `steps`.
  int64_t last_move(int64_t steps) const { return to_step >= 0 ? to_step : steps / 4 * 3; }
};

struct SparseConfig {
  Patterned storage{.fallback = "auto", .patterns = {}};
  Patterned index{.fallback = "auto", .patterns = {}};
  int64_t block = 0;
};

struct ParallelConfig {
  int64_t pipeline = 1;
  std::string schedule = "auto";
  int64_t virtual_stages = 2;
  std::string rank_order = "replicas_first";
  std::string weight_prediction = "none";
  int64_t delay_stages = 1;
  std::vector<int64_t> partition{};  ///< layers of each stage; empty: "auto"
  double bucket_mb = 0;              ///< 0: by the gradient's size
  bool overlap = true;
  int64_t zero = 0;
  Patterned value_codec{.fallback = "fp32", .patterns = {}};
  std::string reduction = "sra";
  std::string device_link = "auto";
  Patterned codec{.fallback = "fp32", .patterns = {}};
  int64_t codec_min_size = 1024;  ///< kept elements
  std::string rounding = "nearest";
  bool error_feedback = false;
  std::string activation_codec = "fp32";
  double timeout_s = 120;
  int64_t check_every = 50;  ///< steps between checksum comparisons across ranks; 0: off
  bool check_state = true;   ///< checksums of state at rest, checked in every step
};

struct RunConfig {
  std::string out = "runs/run";
  std::string backend = "auto";
  int64_t threads = 0;        ///< a rank; 0: cores / local ranks
  bool graphs = true;         ///< of a device: replay passes
  bool deterministic = true;  ///< of a device: two runs have the same bits
  bool trace = true;
  bool operation_times = false;  ///< in summary.json
  bool tensorboard = false;
};

struct Config {
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  PruningConfig pruning;
  SparseConfig sparse;
  ParallelConfig parallel;
  RunConfig run;
};

}  // namespace espalier::io
