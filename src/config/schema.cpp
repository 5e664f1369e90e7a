#include "src/config/schema.h"

#include <algorithm>
#include <cmath>

#include "io/data/image_format.h"
#include "parallel/pipeline/schedule/registry.h"
#include "parallel/reduction/registry.h"
#include "parallel/wire/codec.h"
#include "pruning/plan.h"
#include "pruning/registry.h"
#include "sparse/index/registry.h"
#include "sparse/store/registry.h"
#include "sparse/store/store.h"
#include "src/model/layers/norm.h"
#include "src/model/networks/families.h"
#include "src/model/networks/registry.h"
#include "src/optim/parametrization.h"
#include "src/optim/prediction.h"
#include "src/optim/registry.h"
#include "src/optim/schedule.h"

namespace espalier::config {
namespace {

using namespace effects;
using Choices = std::vector<Choice>;

struct Schema {
  std::vector<Field> keys, hidden;
};

/// Adds rows of one section.
template <class Section>
struct Rows {
  Schema& out;
  std::string name;
  Section Config::*section;

  template <class Value>
  Field& put(std::vector<Field>& rows, std::string member, Value Section::*value, Limits limits,
             std::string help, const Effect& effect) {
    return rows.emplace_back(
        Field{.section = name,
              .name = std::move(member),
              .slot = [section = section,
                       value](Config& config) { return Slot(&(config.*section.*value)); },
              .limits = std::move(limits),
              .help = std::move(help),
              .effect = effect});
  }
  template <class Value>
  void add(std::string key, Value Section::*value, Limits limits, std::string help,
           const Effect& effect) {
    put(out.keys, std::move(key), value, std::move(limits), std::move(help), effect);
  }
  template <class Value>
  void hidden(std::string member, Value Section::*value, Limits limits, std::string help,
              const Effect& effect) {
    put(out.hidden, std::move(member), value, std::move(limits), std::move(help), effect);
  }
  /// Of the key that was added last.
  template <class Value>
  void option(std::string label, std::vector<std::string> of, std::string member,
              Value Section::*value, Limits limits, std::string help, const Effect& effect) {
    Field& key = out.keys.back();
    Field& option =
        put(key.options, std::move(member), value, std::move(limits), std::move(help), effect);
    option.of_key = key.name;
    option.label = std::move(label);
    option.of = std::move(of);
  }
};

Limits at_least(double low) { return {.at_least = low}; }
Limits above(double low) { return {.above = low}; }
Limits range(double low, double high) { return {.at_least = low, .at_most = high}; }
Limits fraction() { return {.at_least = 0, .below = 1}; }
Limits one_of(Choices choices) { return {.choices = std::move(choices)}; }
Limits words(std::initializer_list<std::string_view> names) {
  Choices found;
  for (const std::string_view name : names) {
    found.push_back({.name = std::string(name)});
  }
  return one_of(std::move(found));
}

template <class Names>
Choices named(const Names& names) {
  Choices found;
  for (const auto& name : names) {
    found.push_back({.name = std::string(name)});
  }
  return found;
}
Choices operator+(Choices first, const Choices& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}
const Choices kAuto{{.name = "auto"}};

/// Codecs of single values; of a gradient also those that choose a codec.
Limits value_codecs() { return {.choices = choices(kernels::wire_codecs()), .codec = true}; }
Limits gradient_codecs() { return {.choices = choices(parallel::codecs()), .codec = true}; }

void add_decoder(Rows<io::ModelConfig>& rows) {
  using M = io::ModelConfig;
  rows.add("family", &M::family, one_of(choices(model::families())),
           "of decoder: the choices that its options, and zeros in the keys below, stand for",
           kDecoder);
  rows.option("activation", {}, "activation", &M::activation,
              one_of(kAuto + choices(model::activations())),
              "in the MLP; gated ones multiply it by another product", kDecoder);
  rows.option("residual", {}, "residual", &M::residual, words({"auto", "sequential", "parallel"}),
              "what the MLP of a block reads: x + attention(x), or x as attention does", kDecoder);
  rows.option("biases", {}, "biases", &M::biases, words({"auto", "mlp", "none"}),
              "which of its biases linear layers have: all, those of MLPs, none", kBiases);
  rows.option("norm_epsilon", {}, "norm_epsilon", &M::norm_epsilon, range(0, 1),
              "added to mean squares in norms; 0: the family's", kDecoder);
  rows.option("attention_scale", {}, "attention_scale", &M::attention_scale, at_least(0),
              "factor of queries times keys; 0: 1 / sqrt(head_width)", kDecoder);
  rows.add("kv_heads", &M::kv_heads, range(0, 1 << 16),
           "of decoder: heads of keys and values, which queries share; divides heads; 0: heads",
           kDecoder);
  rows.add("head_width", &M::head_width, range(0, 1 << 16),
           "of decoder: features of a head; 0: width / heads", kDecoder);
  rows.add("mlp_width", &M::mlp_width, range(0, 1 << 24),
           "of decoder: hidden width of a block's MLP; 0: mlp_ratio * width", kDecoder);
  rows.add("window", &M::window, range(0, 1 << 24),
           "of decoder: tokens that a token attends to, itself included; 0: all before it",
           kDecoder);
  rows.add("full_every", &M::full_every, range(0, 1 << 16),
           "of decoder with a window: blocks n, 2 n, ... attend to all tokens; 0: none does",
           kDecoder);
  rows.add("rotary", &M::rotary_scaling, one_of(choices(model::rotary_scalings())),
           "of decoder: how rotary frequencies change for a longer context than before",
           kPositions);
  const std::vector<std::string> scaled{"linear", "dynamic", "llama3", "yarn"};
  const std::vector<std::string> by_turns{"llama3", "yarn"};
  rows.option("factor", scaled, "rotary_factor", &M::rotary_factor, {.at_most = 1e6, .above = 0},
              "new / old context", kPositions);
  rows.option("context", scaled, "rotary_context", &M::rotary_context, range(0, 1 << 24),
              "old context; 0: model.context", kPositions);
  rows.option("low", by_turns, "rotary_low", &M::rotary_low, above(0),
              "frequencies with fewer turns within the old context are divided by factor",
              kPositions);
  rows.option("high", by_turns, "rotary_high", &M::rotary_high, at_least(0),
              "frequencies with more turns stay; 0: 4 of llama3, 32 of yarn", kPositions);
  rows.option("base", {}, "rotary_base", &M::rotary_base, at_least(0),
              "longest wavelength / 2 pi; 0: the family's", kPositions);
  rows.option("share", {}, "rotary_share", &M::rotary_share, range(0, 1),
              "features of a head that are rotated / all; 0: the family's", kPositions);
  rows.option("local_base", {}, "local_rotary_base", &M::local_rotary_base, at_least(0),
              "base of blocks with a window, unscaled; 0: of gemma3 10,000, else as all blocks",
              kPositions);
  rows.option("gain", {}, "rotary_gain", &M::rotary_gain, at_least(0),
              "factor of cosines and sines; 0: of yarn 0.1 ln(factor) + 1, else 1", kPositions);
}

void add_model(Schema& out) {
  using M = io::ModelConfig;
  Rows<M> rows{out, "model", &Config::model};
  rows.add("kind", &M::kind, one_of(choices(model::networks())), "network", kAlways);
  rows.add("layers", &M::layers, range(1, 10'000), "blocks", kTransformer);
  rows.add("heads", &M::heads, range(1, 1 << 16), "attention heads; of gpt: must divide width",
           kTransformer);
  rows.add("width", &M::width, range(1, 1 << 20), "features of a token", kTransformer);
  rows.add("context", &M::context, range(1, 1 << 24), "tokens of a sequence", kTransformer);
  rows.add("tie_embeddings", &M::tie_embeddings, {},
           "of gpt, decoder: the output head is the token embedding", kTransformer);
  rows.add("dropout", &M::dropout, fraction(), "probability that an activation is dropped",
           kAlways);
  rows.add("mlp_ratio", &M::mlp_ratio, range(1, 64), "hidden width of a block's MLP / width",
           kMlpRatio);
  rows.add("norm", &M::norm, one_of(choices(model::norms())),
           "of gpt, vision: normalisation in blocks and before the head", kNorm);
  rows.add("hidden", &M::hidden, range(1, 1 << 24), "of mlp: widths of the hidden layers", kMlp);
  rows.add("network", &M::network, {},
           "of vision: the layers, such as \"conv 64 3 stride 2\", \"max 2\", \"linear 256\"",
           kVision);
  rows.add("image", &M::image, range(1, 1 << 16),
           "of vision: [height, width, channels] of the data", kVision);
  rows.add("classes", &M::classes, range(0, 1 << 20),
           "number of classes of images; 0: from the data", kImages);
  rows.add("vocabulary", &M::vocabulary, range(0, 1 << 24), "number of tokens; 0: from the data",
           kTokens);
  add_decoder(rows);
}

void add_data(Schema& out) {
  using D = io::DataConfig;
  Rows<D> rows{out, "data", &Config::data};
  rows.add("kind", &D::kind,
           one_of({{"bytes", "any files; a token is a byte"},
                   {"chars", "any files; a token is one of the bytes that occur"},
                   {"tokens", "files of binary token numbers"},
                   {"images", "images with labels, in files of data.format"}}),
           "format of the data", kAlways);
  rows.add("train", &D::train, {}, "files", kAlways);
  rows.add("validation", &D::validation, {}, "files; empty: the last part of train", kAlways);
  rows.add("validation_fraction", &D::validation_fraction, fraction(),
           "size of that part / size of train", kSplit);
  rows.add("token_type", &D::token_type,
           one_of({{"auto", "by the note FILE.json of `espalier data tokenize`, else uint16"},
                   {"uint16", "unsigned, 2 bytes"},
                   {"uint32", "unsigned, 4 bytes"}}),
           "type of token files without a header", kTokens);
  rows.add("format", &D::format, one_of(choices(io::image_formats())), "of images: their files",
           kImages);
  rows.add("mean", &D::mean, range(0, 1),
           "of images: subtracted from pixels / 255; one number, or one for each channel; empty: 0",
           kImages);
  rows.add("deviation", &D::deviation, {.at_most = 1, .above = 0},
           "of images: divisor of the difference; one number, or one for each channel; empty: 1",
           kImages);
  rows.add("crop", &D::crop, range(0, 1 << 12),
           "of images: training cuts random windows of the original size, after padding each side "
           "with so many zeros",
           kImages);
  rows.add("flip", &D::flip, {}, "of images: training mirrors each with probability 1/2", kImages);
  rows.add("order", &D::order,
           one_of({{"random", "each sample is drawn from all training data"},
                   {"epochs", "of images: each image once an epoch, in an order of that epoch"}}),
           "order of training samples", kImages);
}

void add_train(Schema& out) {
  using T = io::TrainConfig;
  Rows<T> rows{out, "train", &Config::train};
  rows.add("steps", &T::steps, at_least(1), "optimizer updates", kAlways);
  rows.add("global_batch", &T::global_batch, range(1, 1 << 24), "sequences a step, over all ranks",
           kAlways);
  rows.add("micro_batch", &T::micro_batch, range(0, 1 << 24),
           "sequences a forward pass; 0: the rank's share, or as many as memory_budget allows",
           kAlways);
  rows.add("dtype", &T::dtype, words({"fp32", "bf16", "fp16"}), "type of weights and activations",
           kAlways);
  rows.option("tf32", {"fp32"}, "tf32", &T::tf32, {},
              "on a GPU, dense products and convolutions in TF32 (operands rounded to 11 bits)",
              kGpu);
  rows.add("gradient_dtype", &T::gradient_dtype, words({"auto", "fp32", "bf16", "fp16"}),
           "type in which micro-batches and ranks sum the gradient; auto: fp32, or dtype if a step "
           "has one micro-batch on one replica",
           kHalf);
  rows.add("master_copy", &T::master_copy, {},
           "with bf16, fp16: an fp32 copy of the weights takes the updates; false: no copy, "
           "updates round stochastically",
           kHalf);
  rows.add("label_smoothing", &T::label_smoothing, fraction(),
           "share of the training loss's target distribution that all classes have alike", kAlways);
  rows.add("loss_scale", &T::loss_scale, at_least(0),
           "factor of gradients until the update; 0: in fp16 dynamic, else 1", kAlways);
  rows.add("seed", &T::seed, range(0, 0x1p53 - 1),  // greater integers are not exact as doubles
           "seed of initial weights, data order, dropout and rounding", kAlways);
  rows.add("eval_every", &T::eval_every, at_least(0),
           "steps between evaluations; 0: at the end only", kAlways);
  rows.add("eval_batches", &T::eval_batches, at_least(0),
           "global batches an evaluation; 0: all validation samples", kAlways);
  rows.add("checkpoint_every", &T::checkpoint_every, at_least(-1),
           "steps between checkpoints; 0: at the end only; -1: never", kAlways);
  rows.add("keep_checkpoints", &T::keep_checkpoints, at_least(1),
           "newest checkpoints that are kept", kSaves);
  rows.hidden("checkpoint_background", &T::checkpoint_background, {},
              "write checkpoints from a copy while training goes on", kSaves);
  rows.add("recompute", &T::recompute, one_of(named(model::recompute_names()) + kAuto),
           "activations that backward computes again instead of storing them; auto: as many as "
           "memory_budget requires",
           kAlways);
  rows.add("memory_budget", &T::memory_budget, {},
           "memory of a rank, e.g. \"16GiB\"; empty: no limit", kAlways);
  rows.add("parametrization", &T::parametrization, one_of(choices(optim::parametrizations())),
           "how the learning rate and initial values of a parameter follow its width and density",
           kAlways);
  rows.option("base_width", {"supar", "supar-lr"}, "base_width", &T::base_width, range(0, 1 << 20),
              "width of the network whose learning rate is given; 0: this network's", kAlways);
  rows.add("sync_batch_norm", &T::sync_batch_norm, {},
           "statistics of batch norm are those of the micro-batches of all replicas; CPUs only",
           kReplicasOfVision);
  rows.add("teacher", &T::teacher, {},
           "distillation: checkpoint of a network for the same data, whose predictions are learned "
           "as well; empty: none",
           kAlways);
  rows.add("teacher_weight", &T::teacher_weight, {.at_most = 1, .above = 0},
           "of a teacher: share of the loss; the targets have the rest", kTeacher);
  rows.add("teacher_temperature", &T::teacher_temperature, above(0),
           "of a teacher: divisor of its and the network's logits", kTeacher);
}

void add_optimizer(Schema& out) {
  using O = io::OptimizerConfig;
  Rows<O> rows{out, "optimizer", &Config::optimizer};
  rows.add("kind", &O::kind, one_of(choices(optim::optimizers())), "update rule", kAlways);
  rows.add("lr", &O::lr, {.at_least = 0, .automatic = true},
           "learning rate after warm-up; \"auto\": by optimizer, network and width", kAlways);
  rows.add("min_lr", &O::min_lr, at_least(0),
           "of cosine, linear, polynomial: learning rate at the last step", kMinLr);
  rows.add("warmup_steps", &O::warmup_steps, at_least(0), "steps of linear rise to lr", kAlways);
  rows.add("schedule", &O::schedule, one_of(choices(optim::lr_schedules())),
           "decay of the learning rate after warm-up", kAlways);
  rows.option("factor", {"step"}, "decay_factor", &O::decay_factor, {.at_most = 1, .above = 0},
              "new / old learning rate", kAlways);
  rows.option("at", {"step"}, "decay_at", &O::decay_at, at_least(1),
              "steps after which the learning rate falls, e.g. \"step:0.1:3000,4500\"", kAlways);
  rows.option("power", {"polynomial"}, "power", &O::power, above(0), "exponent", kAlways);
  rows.option("share", {"wsd"}, "decay_share", &O::decay_share, {.at_most = 1, .above = 0},
              "last share of the steps after warm-up, in which the rate falls", kAlways);
  rows.add("beta1", &O::beta1, fraction(), "decay of the first moment", kBetas);
  rows.add("beta2", &O::beta2, fraction(), "decay of the second moment", kBetas);
  rows.add("epsilon", &O::epsilon, above(0), "added to the root of the second moment", kAdam);
  rows.add("momentum", &O::momentum, fraction(), "of sgd", kSgd);
  rows.add("nesterov", &O::nesterov, {}, "of sgd: Nesterov's momentum", kSgd);
  rows.add("weight_decay", &O::weight_decay, at_least(0),
           "matrices only; sgd adds it to the gradient, the others decouple it", kAlways);
  rows.add("clip", &O::clip, at_least(0), "largest global gradient norm; 0: no clipping", kAlways);
  rows.add("state_bits", &O::state_bits, words({"8", "32"}), "bits of an optimizer moment",
           kAlways);
  rows.add("offload", &O::offload, {}, "on a GPU: moments and master copies in pinned host memory",
           kGpu);
}

/// Names of the pruning methods that `holds` accepts.
std::vector<std::string> methods_where(const auto& holds) {
  std::vector<std::string> found;
  for (const pruning::Method* method : pruning::methods()) {
    if (holds(*method)) {
      found.emplace_back(method->name);
    }
  }
  return found;
}

void add_pruning(Schema& out) {
  using P = io::PruningConfig;
  const auto shape_of = [](const pruning::Method& method) {
    return method.shape != nullptr ? method.shape({}) : sparse::IndexShape{};
  };
  const auto groups = [&](const pruning::Method& method) { return shape_of(method).m > 0; };
  const auto blocks = [&](const pruning::Method& method) { return shape_of(method).height > 0; };
  const auto moves = [](const pruning::Method& method) {
    return std::holds_alternative<pruning::Moving>(method.kind);
  };
  const auto scores = [](const pruning::Method& method) {
    const auto* once = std::get_if<pruning::OneShot>(&method.kind);
    return once != nullptr && once->score != nullptr;
  };
  Rows<P> rows{out, "pruning", &Config::pruning};
  rows.add("method", &P::method, one_of(choices(pruning::methods())),
           "how the kept elements are chosen", kAlways);
  rows.option("n", methods_where(groups), "n", &P::n, at_least(1), "kept elements of a group",
              kMethod);
  rows.option("m", methods_where(groups), "m", &P::m, at_least(2), "elements of a group", kMethod);
  rows.option("edge", methods_where(blocks), "block", &P::block, range(1, 1024),
              "elements in each direction", kMethod);
  rows.option("drop_fraction", methods_where(moves), "drop_fraction", &P::drop_fraction, fraction(),
              "first share of a layer's kept elements replaced; falls to 0 at to_step", kMethod);
  rows.option("distribution",
              methods_where([&](const auto& method) { return moves(method) && !groups(method); }),
              "distribution", &P::distribution, words({"erk", "uniform"}),
              "from a random start: densities of layers by shape, or all the same", kMethod);
  rows.option("batches", methods_where(scores), "score_batches", &P::score_batches, at_least(1),
              "batches whose gradients score elements", kMethod);
  rows.add("sparsity", &P::sparsity, fraction(), "zeros / prunable elements", kMethod);
  rows.add("at_step", &P::at_step, at_least(-1),
           "prune once, after this step; -1: before the first (rigl, set: at random)", kMethod);
  rows.add("from_step", &P::from_step, at_least(-1), "gradual pruning starts; -1: not gradual",
           kMethod);
  rows.add("to_step", &P::to_step, at_least(-1),
           "gradual pruning reaches its sparsity; rigl, set: last move (-1: 75 % of train.steps); "
           "early-bird: prunes at the latest",
           kMethod);
  rows.add("every", &P::every, at_least(0),
           "steps between changes; 0: 10, or 100 for rigl, set, early-bird, or 32 for elsa (of its "
           "target)",
           kMethod);
  rows.add("scope", &P::scope, words({"auto", "global", "layer"}),
           "where elements compete; auto: layer for snip, grasp, movement, else global", kMethod);
  rows.add("dense_from_step", &P::dense_from_step, {.numbers = true},
           "masks grow to full after this step, or (below 1) this share of train.steps: sparse "
           "first, dense last. \"STEP:SPARSITY,…\": in stages; empty: never",
           kPruned);
  rows.add("exclude", &P::exclude, {}, "globs of parameter names left dense", kAlways);
  rows.add("file", &P::file, {}, "of method file: a checkpoint whose masks are taken", kMethod);
}

void add_sparse(Schema& out) {
  using S = io::SparseConfig;
  Rows<S> rows{out, "sparse", &Config::sparse};
  rows.add(
      "storage", &S::storage,
      one_of(choices(sparse::storages()) +
             Choices{{.name = "auto", .help = "the fastest, by times of all that hold the mask"}}),
      "how a pruned weight is held for compute; may differ by parameter", kStorage);
  rows.option("block", {}, "block", &S::block, range(0, 1024),
              "edge in storage block; 0: that of pruning.method, or of the blocks that masks have",
              kBlockStorage);
  rows.add("index", &S::index,
           one_of(choices<sparse::Encoding>(sparse::memory_encodings()) +
                  Choices{{.name = "auto", .help = "the smallest whose decoding is fast"}}),
           "how positions are encoded; may differ by parameter", kPruned);
}

void add_parallel(Schema& out) {
  using P = io::ParallelConfig;
  Rows<P> rows{out, "parallel", &Config::parallel};
  rows.add("pipeline", &P::pipeline, {.at_least = 0, .at_most = 1024, .automatic = true},
           "ranks that share the layers, the rest are data parallel; \"auto\": the fastest that "
           "fit memory_budget",
           kAlways);
  rows.add("schedule", &P::schedule,
           one_of(Choices{{.name = "auto",
                           .help = "the fastest of 1f1b, zb-h1 and zb-v that fits, by measured "
                                   "times"}} +
                  choices(parallel::schedules())),
           "order of micro-batches in the pipeline; async: stages step by themselves",
           kSimulatedStages);
  rows.option("stages", {"interleaved"}, "virtual_stages", &P::virtual_stages, range(1, 64),
              "stages a rank", kAlways);
  rows.option("delay", {"async"}, "delay_stages", &P::delay_stages, range(1, 1024),
              "with pipeline = 1, train with the delays of so many stages", kAlways);
  rows.add("rank_order", &P::rank_order,
           one_of({{"replicas_first", "replicas of a stage: all-reduce stays inside machines"},
                   {"stages_first", "stages of a replica: their messages stay inside machines"}}),
           "which ranks have consecutive numbers: launchers put these on one machine", kGrid);
  rows.add("weight_prediction", &P::weight_prediction, one_of(choices(optim::predictions())),
           "of schedule async: the weights that stages compute with", kSimulatedStages);
  rows.add("partition", &P::partition, {.at_least = 1, .automatic = true},
           "layers of each stage, e.g. [3, 2, 3]; \"auto\": balanced by measured times", kAlways);
  rows.hidden(
      "bucket_mb", &P::bucket_mb, {.at_least = 0, .at_most = 4096},
      "size of a bucket of gradients in MiB; 0: a 16th of the gradient, within 1/16 and 4 MiB",
      kReplicas);
  rows.hidden("overlap", &P::overlap, {}, "reduce while backward goes on", kReplicas);
  rows.add("zero", &P::zero, words({"0", "1"}),
           "ZeRO stage: what is divided among data-parallel ranks; 1: the optimizer's state",
           kReplicas);
  rows.add("value_codec", &P::value_codec, value_codecs(),
           "with zero = 1: of new values on the wire; may differ by parameter; fp32: as they are",
           kValues);
  rows.add("reduction", &P::reduction, one_of(kAuto + choices(parallel::reductions())),
           "algorithm of the all-reduce; auto: by ranks a machine, and codecs only where they pay",
           kReplicas);
  rows.add("device_link", &P::device_link, words({"auto", "nccl", "mpi", "host"}),
           "with run.backend = \"cuda\": how gradients, values and messages between stages get to "
           "other GPUs; auto: by NCCL where it is there and each rank has a GPU of its own, else "
           "messages by an MPI that takes addresses of GPUs, else through the host",
           kLinks);
  rows.add("codec", &P::codec, gradient_codecs(),
           "of gradients on the wire; may differ by parameter. NAME[:NUMBER[:BUCKET]]", kReplicas);
  rows.hidden("codec_min_size", &P::codec_min_size, at_least(0),
              "kept elements; smaller parameters, biases and norms are sent as they are", kCodec);
  rows.add("rounding", &P::rounding, words({"nearest", "stochastic"}), "of codecs", kCodec);
  rows.add("error_feedback", &P::error_feedback, {}, "carry the codec's error to the next step",
           kReplicas);
  rows.add("activation_codec", &P::activation_codec, value_codecs(),
           "of activations and their gradients between stages", kStages);
  rows.add("timeout_s", &P::timeout_s, {.at_most = 86'400, .above = 0},
           "seconds a rank waits for another", kAlways);
  rows.add("check_every", &P::check_every, at_least(0),
           "steps between checksum comparisons of all ranks; 0: off", kReplicas);
  rows.hidden("check_state", &P::check_state, {},
              "verify in every step that host state kept its bits since the last update", kAlways);
}

void add_run(Schema& out) {
  using R = io::RunConfig;
  Rows<R> rows{out, "run", &Config::run};
  rows.add("out", &R::out, {}, "run directory", kAlways);
  rows.add("backend", &R::backend, words({"auto", "cpu", "cuda"}), "where kernels run", kAlways);
  rows.add("threads", &R::threads, range(0, 1024),
           "of a rank; 0: usable CPUs / ranks that share them", kAlways);
  rows.hidden("graphs", &R::graphs, {},
              "on a GPU: capture the kernels of a pass in a CUDA graph and replay it", kGpu);
  rows.add("deterministic", &R::deterministic, {},
           "false: on a GPU, faster kernels whose results may differ between two runs", kGpu);
  rows.add("trace", &R::trace, {}, "write trace.json", kAlways);
  rows.add("operation_times", &R::operation_times, {},
           "write the time of each operation to summary.json; on a GPU no graphs are captured then",
           kAlways);
  rows.add("tensorboard", &R::tensorboard, {},
           "write event files, which TensorBoard reads: metrics of each step, and at each "
           "evaluation a histogram of each parameter's kept weights",
           kAlways);
}

struct Checker {
  const Limits& limits;
  Place at;
  void operator()(const bool* value) const { word(*value ? "true" : "false", false); }
  void operator()(const int64_t* value) const { integer(*value); }
  void operator()(const double* value) const {
    if (!limits.automatic || *value != io::kAutomatic) {
      check_real(at, limits, *value);
    }
  }
  void operator()(const std::string* value) const { word(*value, true); }
  void operator()(const std::vector<std::string>* values) const {
    std::ranges::for_each(*values, [&](const auto& value) { word(value, true); });
  }
  void operator()(const std::vector<int64_t>* values) const {
    std::ranges::for_each(*values, [&](int64_t value) { integer(value); });
  }
  void operator()(const std::vector<double>* values) const {
    std::ranges::for_each(*values, [&](double value) { check_real(at, limits, value); });
  }
  void operator()(const io::Patterned* value) const {
    word(value->fallback, true);
    for (const auto& [glob, text] : value->patterns) {
      check_text(at, glob);
      word(text, true);
    }
  }

 private:
  void word(const std::string& text, bool quoted) const { check_word(at, limits, text, quoted); }
  /// Without a limit of its own at most 2^31 - 1: products of two integers then fit 64 bits.
  void integer(int64_t value) const {
    Limits of_integers = limits;
    of_integers.at_most = std::isfinite(limits.at_most) ? limits.at_most : INT32_MAX;
    check_number(at, of_integers, static_cast<double>(value), fmt::format("{}", value));
  }
};

const Schema& schema() {
  static const Schema kSchema = [] {
    Schema all;
    for (auto* section : {add_model, add_data, add_train, add_optimizer, add_pruning, add_sparse,
                          add_parallel, add_run}) {
      section(all);
    }
    return all;
  }();
  return kSchema;
}

}  // namespace

std::span<const Field> fields() { return schema().keys; }

std::span<const Field* const> members() {
  static const std::vector<const Field*> kMembers = [] {
    std::vector<const Field*> all;
    const auto add = [&all](const std::vector<Field>& rows) {
      std::ranges::transform(rows, std::back_inserter(all), [](const Field& row) { return &row; });
    };
    for (const Field& key : schema().keys) {
      all.push_back(&key);
      add(key.options);
    }
    add(schema().hidden);
    return all;
  }();
  return kMembers;
}

const Field* find_field(std::string_view section, std::string_view name) {
  const auto found = std::ranges::find_if(
      fields(), [&](const Field& field) { return field.section == section && field.name == name; });
  return found == fields().end() ? nullptr : &*found;
}

const Field* find_member(std::string_view section, std::string_view name) {
  const auto found = std::ranges::find_if(members(), [&](const Field* field) {
    return field->section == section && field->name == name;
  });
  return found == members().end() ? nullptr : *found;
}

std::string& word_of(const Field& field, Config& config) {
  const Slot slot = field.slot(config);
  const auto* patterned = std::get_if<io::Patterned*>(&slot);
  return patterned != nullptr ? (*patterned)->fallback : *std::get<std::string*>(slot);
}

bool is_section(std::string_view name) {
  return std::ranges::find(fields(), name, &Field::section) != fields().end();
}

std::string suggestion(std::string_view section, std::string_view name) {
  std::vector<std::string> here;
  std::vector<std::string> sections;
  std::string elsewhere;
  for (const Field& field : fields()) {
    if (field.section == section) {
      here.push_back(field.name);
    } else if (field.name == name && elsewhere.empty()) {
      elsewhere = field.key();
    }
    if (sections.empty() || sections.back() != field.section) {
      sections.push_back(field.section);
    }
  }
  std::string near;
  if (!here.empty()) {
    near = elsewhere.empty() ? nearest(name, here) : elsewhere;
  } else if (name.empty()) {
    near = nearest(section, sections);
  } else {
    near = elsewhere.empty() ? nearest(section, sections) : elsewhere;
  }
  if (!near.empty()) {
    return fmt::format("; did you mean \"{}\"?", near);
  }
  return fmt::format("; known: {}", fmt::join(here.empty() ? sections : here, ", "));
}

bool has_effect(const Field& field, const Config& config, const RunFacts& run) {
  if (!field.of.empty() && !field.belongs_to(word_of(*find_field(field.section, field.of_key),
                                                     const_cast<Config&>(config)))) {
    return false;
  }
  if (field.effect.applies != nullptr) {
    return field.effect.applies(config, run);
  }
  return field.section != "pruning" || field.effect.where.empty() ||
         pruning::reads_key(config.pruning, field.name);
}

void check_patterns(const Config& config, std::span<const sparse::ParameterSpec> network) {
  std::vector<std::string> names;
  std::ranges::transform(network, std::back_inserter(names), &sparse::ParameterSpec::name);
  for (const Field& field : fields()) {
    const Slot slot = field.read(config);
    if (const auto* value = std::get_if<io::Patterned*>(&slot)) {
      for (const auto& [glob, text] : (*value)->patterns) {
        io::check_matches(field.key(), glob, names);
      }
    }
  }
}

void check_limits(const Field& field, const Config& config, std::string_view where) {
  std::visit(Checker{.limits = field.limits, .at = {.key = field.key(), .where = where}},
             field.read(config));
  for (const Field& option : field.options) {
    check_limits(option, config, where);
  }
}

}  // namespace espalier::config
