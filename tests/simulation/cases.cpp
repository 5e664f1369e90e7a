#include "tests/simulation/cases.h"

#include <fstream>

#include "parallel/pipeline/schedule/registry.h"
#include "parallel/reduction/registry.h"
#include "pruning/plan.h"
#include "pruning/registry.h"
#include "src/core/rng.h"
#include "src/model/layers/norm.h"
#include "src/model/networks/families.h"
#include "src/model/networks/registry.h"
#include "src/optim/prediction.h"
#include "src/optim/registry.h"
#include "tests/support/codec_samples.h"
#include "tests/support/draw.h"
#include "tests/support/method_kinds.h"

namespace espalier::simulation {
namespace {

using testing::Draw;

/// One of the names of a registry that `fits` selects.
template <class Entry, class Fits>
std::string one_of(Draw& draw, Registry<Entry> all, const Fits& fits) {
  std::vector<std::string> names;
  for (const Entry* entry : all) {
    if (fits(*entry)) {
      names.emplace_back(entry->name);
    }
  }
  return names[draw.between(0, static_cast<int64_t>(names.size()) - 1)];
}

template <class Entry>
std::string one_of(Draw& draw, Registry<Entry> all) {
  return one_of(draw, all, [](const Entry&) { return true; });
}

/// Text of few letters: the vocabulary, and with it the network, is small.
void write_letters(const std::filesystem::path& path) {
  std::ofstream out(path);
  for (uint32_t i = 0; i < 600; ++i) {
    out << static_cast<char>('a' + philox(1, 1, i / 2)[i % 2] % 6);
  }
}

/// IDX files of 60 images with 3 x 3 pixels and 3 labels.
void write_images(const std::filesystem::path& images, const std::filesystem::path& labels) {
  constexpr int kImages = 60;
  constexpr int kEdge = 3;
  const auto header = [](std::ofstream& out, std::initializer_list<int> numbers) {
    for (const int number : numbers) {
      out << std::string{0, 0, static_cast<char>(number / 256), static_cast<char>(number % 256)};
    }
  };
  std::ofstream pixels(images, std::ios::binary);
  std::ofstream classes(labels, std::ios::binary);
  header(pixels, {0x803, kImages, kEdge, kEdge});
  header(classes, {0x801, kImages});
  for (uint32_t i = 0; i < kImages; ++i) {
    classes << static_cast<char>(i % 3);
    for (uint32_t p = 0; p < kEdge * kEdge; ++p) {
      pixels << static_cast<char>(philox(2, i, p)[0] % 256);
    }
  }
}

void draw_model(Draw& draw, const testing::TempDir& dir, io::Config& config) {
  auto& model = config.model;
  model.kind = draw.once_in(2) ? "gpt" : one_of(draw, model::networks());
  model.layers = 1;
  model.heads = draw.of<int64_t>({1, 2});
  model.width = model.heads * 4;
  model.context = 8;
  model.mlp_ratio = 2;
  model.hidden = draw.once_in(2) ? std::vector<int64_t>{8} : std::vector<int64_t>{12, 8};
  model.network = {"conv 4 3"};
  if (model.hidden.size() == 2) {
    model.network = {"conv 4 3 norm", "basic 4 stride 2"};
  }
  model.image = {3, 3, 1};
  model.tie_embeddings = draw.once_in(4);
  model.dropout = draw.once_in(4) ? 0.1 : 0;
  model.norm = one_of(draw, model::norms());
  if (model.kind == "decoder") {
    model.family = one_of(draw, model::families());
    model.rotary_share = model.family == "neox" ? 0.5 : 0;  // of four features
  }
  if (model::network_of(model).input_dtype == DType::fp32) {
    config.data.kind = "images";
    config.data.train = {(dir / "images").string(), (dir / "labels").string()};
    write_images(config.data.train[0], config.data.train[1]);
    config.data.crop = draw.of<int64_t>({0, 1, 2});
    config.data.flip = draw.once_in(2);
    config.data.order = draw.of<const char*>({"random", "epochs"});
  } else {
    config.data.kind = "chars";
    config.data.train = {(dir / "text.txt").string()};
    write_letters(config.data.train[0]);
  }
}

void draw_training(Draw& draw, io::Config& config) {
  auto& train = config.train;
  train.steps = draw.between(4, 6);
  train.dtype = draw.of<const char*>({"fp32", "fp32", "bf16", "fp16"});
  train.gradient_dtype = draw.of<const char*>({"auto", "auto", "fp32"});
  train.master_copy = train.dtype == "fp32" || !draw.once_in(4);
  train.loss_scale = train.dtype == "fp16" ? draw.of<double>({0, 1024}) : 0;
  train.recompute = draw.of<const char*>({"none", "none", "selective", "full"});
  train.eval_every = draw.of<int64_t>({0, 3});
  train.eval_batches = 1;
  train.checkpoint_every = 2;
  train.keep_checkpoints = draw.of<int64_t>({1, 2, 9});
  auto& optimizer = config.optimizer;
  optimizer.kind = draw.once_in(2) ? "adamw" : one_of(draw, optim::optimizers());
  optimizer.warmup_steps = 2;
  optimizer.clip = draw.of<double>({1, 1, 0});
  optimizer.state_bits = draw.of<int64_t>({32, 32, 8});
}

void draw_pruning(Draw& draw, io::Config& config) {
  auto& pruning = config.pruning;
  if (!draw.once_in(4)) {
    pruning.method = one_of(draw, pruning::methods(), [](const pruning::Method& method) {
      return method.run != nullptr && !testing::waits(method);
    });
  }
  pruning.sparsity = draw.of<double>({0.3, 0.75});
  pruning.scope = draw.of<const char*>({"global", "layer"});
  pruning.distribution = draw.of<const char*>({"erk", "uniform"});
  pruning.at_step = draw.of<int64_t>({-1, 0, 1, 3});
  pruning.every = draw.of<int64_t>({1, 2});
  pruning.score_batches = 2;
  pruning.block = 4;
  const pruning::Method& method = pruning::method_of(pruning);
  if (testing::learns(method)) {
    pruning.at_step = std::max<int64_t>(pruning.at_step, 1);
  }
  if (testing::needs_fp32(method)) {
    config.train.dtype = "fp32";
    config.train.gradient_dtype = "auto";
    config.train.master_copy = true;
    config.train.loss_scale = 0;
  }
  if (testing::moves(method)) {
    pruning.to_step = 4;
    pruning.from_step = draw.of<int64_t>({0, 1});
    pruning.at_step = -1;
  } else if (method.sparsity == nullptr && draw.once_in(3)) {  // gradual
    pruning.at_step = -1;
    pruning.from_step = 1;
    pruning.to_step = 4;
  }
  auto& sparse = config.sparse;
  const bool blocks = pruning::shape_of(pruning).height > 0;
  sparse.storage.fallback = blocks && draw.once_in(2)
                                ? "block"
                                : draw.of<const char*>({"dense", "expanded", "sparse", "tiles"});
  sparse.index.fallback = draw.of<const char*>({"auto", "int32", "bitmap", "golomb"});
}

/// Codecs of gradients and, with ZeRO, of values.
void draw_codecs(Draw& draw, io::Config& config) {
  auto& parallel = config.parallel;
  const std::vector<std::string> lossy = testing::lossy_codecs();
  const auto any_lossy = [&] {
    return lossy[draw.between(0, static_cast<int64_t>(lossy.size()) - 1)];
  };
  parallel.reduction =
      one_of(draw, parallel::reductions(), [](const auto& entry) { return entry.takes_codecs; });
  parallel.codec_min_size = draw.of<int64_t>({1, 64});
  parallel.rounding = draw.of<const char*>({"nearest", "stochastic"});
  if (draw.once_in(2)) {
    parallel.codec.fallback = draw.once_in(6) ? "adaptive:3" : any_lossy();
    if (draw.once_in(4)) {
      parallel.codec.patterns = {{"*.weight", any_lossy()}};
    }
    parallel.error_feedback = draw.once_in(2);
  }
  if (parallel.zero == 1 && config.train.master_copy && draw.once_in(2)) {
    parallel.value_codec.fallback = any_lossy();
  }
  const bool asynchronous = !parallel::schedule_entry(parallel.schedule).synchronous;
  if (config.train.dtype == "fp16" && (parallel.error_feedback || asynchronous)) {
    config.train.loss_scale = 1024;
  }
}

/// Makes the network deep enough for the stages. Times of layers differ between runs; the partition
/// must not.
void fix_partition(io::Config& config) {
  const auto& entry = parallel::schedule_entry(config.parallel.schedule);
  const int64_t stages =
      config.parallel.pipeline *
      entry.chunks_of({.chunks = static_cast<int>(config.parallel.virtual_stages)});
  const model::NetworkKind& network = model::network_of(config.model);
  const auto layers = [&] { return static_cast<int64_t>(network.layer_count(config.model)); };
  while (layers() < stages) {
    ++config.model.layers;
    config.model.hidden.push_back(8);
    config.model.network.emplace_back("linear 8");
  }
  for (int64_t stage = 0; stage < stages; ++stage) {
    config.parallel.partition.push_back(layers() * (stage + 1) / stages -
                                        layers() * stage / stages);
  }
}

/// Returns the number of ranks.
int draw_ranks(Draw& draw, io::Config& config) {
  auto& parallel = config.parallel;
  parallel.pipeline = draw.of<int64_t>({1, 1, 2, 2, 3});
  const int64_t replicas = parallel.pipeline == 1   ? draw.of<int64_t>({2, 3, 4})
                           : parallel.pipeline == 2 ? draw.of<int64_t>({1, 2})
                                                    : 1;
  int64_t micro_batches = 1;
  parallel.zero = draw.once_in(3) ? 1 : 0;
  const bool delays = parallel.pipeline == 1 && draw.once_in(12);
  if (parallel.pipeline > 1 || delays) {
    parallel.schedule = delays ? "async" : one_of(draw, parallel::schedules());
    parallel.delay_stages = delays ? 2 : 1;
    parallel.activation_codec = draw.of<const char*>({"fp32", "fp32", "bf16", "maxmin:8"});
    micro_batches = parallel.pipeline * draw.of<int64_t>({1, 2, 2});
    config.train.micro_batch = 1;
    if (!parallel::schedule_entry(parallel.schedule).synchronous) {
      const optim::OptimizerKind& optimizer = optim::optimizer_of(config.optimizer);
      parallel.weight_prediction =
          one_of(draw, optim::predictions(), [&](const optim::PredictionEntry& entry) {
            return !entry.predicts || optimizer.predict != nullptr;
          });
      config.train.eval_every = draw.of<int64_t>({1, 3, 0});  // the pipeline drains there
      parallel.zero = 0;
      config.model.tie_embeddings = false;
    }
    if (!delays) {
      fix_partition(config);
    }
  } else if (draw.once_in(2)) {
    config.train.micro_batch = 1;
    micro_batches = 2;
  }
  config.train.global_batch = replicas * micro_batches;
  parallel.overlap = !draw.once_in(4);
  parallel.bucket_mb = draw.of<double>({0, 0.0005});
  parallel.check_every = draw.of<int64_t>({0, 1, 3});
  parallel.check_state = !draw.once_in(4);
  parallel.timeout_s = draw.of<double>({2, 120, 1000});
  return static_cast<int>(replicas * parallel.pipeline);
}

/// Leaves choices to the run's measurements; returns their kind. Codecs and sums are timed again
/// when masks change, so those runs prune before the first step or not at all.
TimedChoice draw_timed_choice(Draw& draw, io::Config& config) {
  auto& parallel = config.parallel;
  const bool synchronous = parallel::schedule_entry(parallel.schedule).synchronous;
  switch (draw.between(0, 15)) {
    case 0:
      config.sparse.storage.fallback = "auto";
      return TimedChoice::kept;
    case 1:
    case 2: {
      const auto kind = draw.between(0, synchronous ? 2 : 1);
      parallel.codec = {.fallback = kind == 0   ? "fastest"
                                    : kind == 1 ? "maxmin:4"
                                                : "adaptive-time",
                        .patterns = {}};
      parallel.reduction = kind == 0 ? parallel.reduction : "auto";
      config.pruning = {.method = config.pruning.method == "none" ? "none" : "magnitude",
                        .sparsity = 0.5};
      return TimedChoice::kept;
    }
    case 3:
      if (!synchronous || !draw.once_in(2)) {
        return TimedChoice::none;
      }
      config.train.steps = 7;
      parallel.codec = {.fallback = "adaprec:100:5:fp32+maxmin:4", .patterns = {}};
      config.pruning = {};
      return TimedChoice::in_rounds;
    default:
      return TimedChoice::none;
  }
}

}  // namespace

Case draw_case(uint64_t number, const testing::TempDir& dir) {
  Draw draw(number);
  Case run;
  io::Config& config = run.config;
  config.run.threads = 1;
  config.run.trace = draw.once_in(4);
  config.run.out = (dir / "run").string();
  draw_model(draw, dir, config);
  draw_training(draw, config);
  draw_pruning(draw, config);
  run.ranks = draw_ranks(draw, config);
  if (testing::learns(pruning::method_of(config.pruning)) &&
      !parallel::schedule_entry(config.parallel.schedule).synchronous) {
    config.pruning.method = "magnitude";
  }
  draw_codecs(draw, config);
  run.timed = draw_timed_choice(draw, config);
  run.ranks_a_node = draw.of<int>({0, 1, 2});
  config.train.checkpoint_background = !draw.once_in(4);
  run.shares_disk = !draw.once_in(4);
  config.run.tensorboard = draw.once_in(4);
  return run;
}

}  // namespace espalier::simulation
