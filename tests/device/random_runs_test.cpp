// Runs with random settings have the CPU's bits on a device, and resume there, or from there,
// without a change; settings that the CPU refuses are refused there, too.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <map>
#include <set>

#include "src/config/dump.h"
#include "src/config/parse.h"
#include "src/core/error.h"
#include "tests/device/late_runs.h"
#include "tests/support/draw.h"
#include "tests/support/grid.h"

namespace espalier::random_runs_test {
namespace {

using testing::Outcome;
using testing::TempDir;

constexpr int64_t kStop = 5;

/// Text of 64 characters: devices pad rows of logits to a multiple of 64, and the CPU's products
/// round differently for longer rows.
void write_text_of_64(const std::filesystem::path& path) {
  std::ofstream out(path);
  for (uint32_t i = 0; i < 20'000; ++i) {
    const uint32_t drawn = philox(1, 1, i / 2)[0];
    out << static_cast<char>(' ' + (i % 2 == 0 ? drawn % 64 : drawn / 64 % 8));
  }
}

void draw_model(testing::Draw& draw, io::Config& config) {
  config.model.layers = draw.of<int64_t>({1, 2, 3, 4});
  config.model.heads = draw.of<int64_t>({1, 2, 3});
  config.model.width = config.model.heads * draw.of<int64_t>({5, 8, 16});
  config.model.context = draw.of<int64_t>({7, 16, 33});
  config.model.mlp_ratio = draw.of<int64_t>({1, 3, 4});
  config.model.tie_embeddings = draw.once_in(3);
  config.model.dropout = draw.once_in(5) ? 0.1 : 0;
}

void draw_training(testing::Draw& draw, io::Config& config) {
  auto& train = config.train;
  train.seed = draw.of<int64_t>({1, 7, 1234567});
  train.dtype = draw.of<const char*>({"fp32", "bf16", "fp16"});
  train.gradient_dtype = draw.of<const char*>({"auto", "auto", "fp32"});
  train.master_copy = train.dtype == "fp32" || !draw.once_in(3);
  train.loss_scale = draw.of<double>({0, 0, 1, 1024});
  train.global_batch = 12;
  train.micro_batch = draw.of<int64_t>({0, 1, 2});
  train.recompute = draw.of<const char*>({"none", "none", "selective", "full"});
  train.eval_every = draw.of<int64_t>({0, 0, 5});
  train.checkpoint_every = draw.of<int64_t>({0, 4});
  auto& optimizer = config.optimizer;
  optimizer.kind = draw.of<const char*>({"adamw", "adamw", "sgd"});
  optimizer.lr = draw.of<double>({1e-3, 1e-2});
  optimizer.clip = draw.of<double>({0, 1, 0.1});
  optimizer.state_bits = draw.of<int64_t>({32, 32, 8});
  optimizer.offload = draw.once_in(4);
  config.run.graphs = !draw.once_in(4);
}

void draw_pruning(testing::Draw& draw, io::Config& config) {
  auto& pruning = config.pruning;
  pruning.method = draw.of<const char*>({"none", "magnitude", "magnitude", "random", "nm", "block",
                                         "rigl", "set", "rigl-block", "set-nm"});
  pruning.sparsity = draw.of<double>({0.3, 0.75, 0.9, 0.98});
  pruning.scope = draw.of<const char*>({"global", "layer"});
  pruning.at_step = draw.of<int64_t>({-1, 0, 4});
  pruning.block = draw.of<int64_t>({4, 5, 16});
  if (pruning.method == "magnitude" && draw.once_in(2)) {
    pruning.at_step = -1;
    pruning.from_step = 2;
    pruning.to_step = 10;
  }
  pruning.every = 3;
  auto& sparse = config.sparse;
  const bool blocks = pruning.method.ends_with("block") && draw.once_in(2);
  sparse.storage.fallback =
      blocks ? "block" : draw.of<const char*>({"dense", "expanded", "sparse"});
  if (draw.once_in(3)) {
    sparse.storage.patterns = {{"blocks.*.mlp.*", draw.of<const char*>({"sparse", "expanded"})}};
  }
  sparse.index.fallback = draw.of<const char*>({"auto", "int32", "bitmap", "golomb"});
  for (const char* units : {"nm", "block"}) {
    if (pruning.method.ends_with(units) && draw.once_in(2)) {
      sparse.index.fallback = units;
    }
  }
}

/// A measured partition may differ between runs, and codes between stages are lossy.
void fix_partition(io::Config& config) {
  const std::string& schedule = config.parallel.schedule;
  const bool chunks = schedule == "interleaved" || schedule == "zb-v" || schedule == "dualpipe-v";
  const int64_t stages = config.parallel.pipeline * (chunks ? 2 : 1);
  config.model.layers = std::max(config.model.layers, stages - 2);
  const int64_t layers = config.model.layers + 2;
  for (int64_t stage = 0; stage < stages; ++stage) {
    config.parallel.partition.push_back(layers * (stage + 1) / stages - layers * stage / stages);
  }
}

/// Returns the number of ranks.
int draw_ranks(testing::Draw& draw, io::Config& config) {
  auto& parallel = config.parallel;
  const int replicas = draw.of<int>({1, 1, 2, 3});
  parallel.pipeline = draw.of<int64_t>({1, 1, 2});
  if (parallel.pipeline > 1) {
    parallel.schedule = draw.of<const char*>(
        {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v", "message-driven", "async"});
    parallel.activation_codec = draw.of<const char*>({"fp32", "fp32", "bf16", "maxmin:8"});
  }
  if (parallel.pipeline > 1) {
    fix_partition(config);
  }
  if (parallel.pipeline > 1 && parallel.schedule == "async") {
    parallel.weight_prediction = draw.of<const char*>({"none", "stash", "2bw", "spectrain"});
    config.train.eval_every = draw.of<int64_t>({3, 0});
    config.train.checkpoint_every = kStop;  // the pipeline drains here on both devices
  }
  parallel.zero = draw.once_in(3) ? 1 : 0;
  parallel.overlap = !draw.once_in(4);
  parallel.bucket_mb = draw.of<double>({0, 0.01});
  parallel.codec_min_size = draw.of<int64_t>({64, 1024});
  parallel.rounding = draw.of<const char*>({"nearest", "stochastic"});
  if (draw.once_in(2)) {
    parallel.codec.fallback =
        draw.of<const char*>({"bf16", "fp8-e5m2", "dynamic8", "linear8", "maxmin:4", "table:2",
                              "sign", "topk:0.1", "adaptive:3"});
    parallel.error_feedback = draw.once_in(2);
    if (config.train.dtype == "fp16" && config.train.loss_scale == 0) {
      config.train.loss_scale = 1024;  // feedback is of one scale
    }
  }
  if (parallel.zero == 1 && draw.once_in(3)) {
    parallel.value_codec.fallback = draw.of<const char*>({"bf16", "maxmin:4"});
  }
  return replicas * static_cast<int>(parallel.pipeline);
}

/// End of a run: an outcome, or the reason why there is none.
struct End {
  std::string refusal;
  Outcome outcome;
};

End end_of(const io::Config& config, int ranks, bool late, train::TrainerOptions options = {}) {
  End end;
  options.kernels = late ? &testing::late_table() : nullptr;
  try {
    config::validate(config);
    end.outcome = testing::run_grid(config, ranks, options);
  } catch (const Failure& failure) {
    end.refusal = failure.what();
  }
  return end;
}

/// Replaces the run's folder in a text by RUN, so that texts of two runs compare equal.
std::string without_paths(std::string text, const io::Config& config) {
  for (size_t at; (at = text.find(config.run.out)) != std::string::npos;) {
    text.replace(at, config.run.out.size(), "RUN");
  }
  return text;
}

std::string said(const io::Config& config, int ranks) {
  return fmt::format("{} ranks, {}\n{}", ranks, config.parallel.device_link,
                     config::to_toml(config));
}

/// Names of the parts of Espalier that a run uses.
std::set<std::string> parts_of(const io::Config& config, int ranks) {
  const bool pipelined = config.parallel.pipeline > 1;
  const bool replicas = ranks > config.parallel.pipeline;
  const std::map<std::string, bool> used{
      {"16 bits", config.train.dtype != "fp32"},
      {"replicas", replicas},
      {"zero", replicas && config.parallel.zero == 1},
      {"codec", replicas && config.parallel.codec.fallback != "fp32"},
      {"pipeline", pipelined},
      {"asynchronous pipeline", pipelined && config.parallel.schedule == "async"},
      {"pruning", config.pruning.prunes()},
      {"moving masks",
       config.pruning.method.starts_with("rigl") || config.pruning.method.starts_with("set")},
      {"sparse storage", config.pruning.prunes() && config.sparse.storage.fallback == "sparse"},
      {"8-bit states", config.optimizer.state_bits == 8}};
  std::set<std::string> names;
  for (const auto& [name, is_used] : used) {
    if (is_used) {
      names.insert(name);
    }
  }
  return names;
}
constexpr size_t kParts = 10;

/// Returns the reason if there was no run; else adds to `parts` what the run used.
std::string compare(uint64_t number, std::set<std::string>& parts) {
  testing::Draw draw(number);
  const TempDir dir;
  write_text_of_64(dir / "text.txt");
  io::Config config = testing::tiny_config(dir);
  draw_model(draw, config);
  draw_training(draw, config);
  draw_pruning(draw, config);
  const int ranks = draw_ranks(draw, config);
  SCOPED_TRACE(fmt::format("run {}: {}", number, said(config, ranks)));
  const End want = end_of(config, ranks, false);
  config.parallel.device_link = draw.of<const char*>({"auto", "auto", "host"});
  const End got = end_of(config, ranks, true);
  EXPECT_EQ(without_paths(got.refusal, config), without_paths(want.refusal, config));
  EXPECT_TRUE(got.outcome == want.outcome);
  if (!want.refusal.empty() || !got.refusal.empty()) {
    return want.refusal;
  }
  const bool late_first = draw.once_in(2);
  const End begun = end_of(config, ranks, late_first, {.resume = "none", .stop_after = kStop});
  EXPECT_EQ(begun.refusal, "");
  End whole = end_of(config, ranks, !late_first, {.resume = "auto"});
  EXPECT_EQ(whole.refusal, "");
  whole.outcome.losses = want.outcome.losses;
  EXPECT_TRUE(whole.outcome == want.outcome) << "after a checkpoint";
  parts.merge(parts_of(config, ranks));
  return "";
}

TEST(RandomRuns, HaveTheBitsOfTheCpu) {
  const testing::LinkedDevices linked;
  const testing::Numbers numbers(336, 348);
  uint64_t refused = 0;
  std::set<std::string> parts;
  for (uint64_t number = numbers.from; number < numbers.to; ++number) {
    const std::string refusal = compare(number, parts);
    refused += refusal.empty() ? 0 : 1;
    if (numbers.from_environment) {
      std::printf("%lu: %s; used so far: %s\n", number, refusal.c_str(),
                  fmt::format("{}", fmt::join(parts, ", ")).c_str());
    }
  }
  if (!numbers.from_environment) {
    EXPECT_EQ(refused, 0U);
    EXPECT_EQ(parts.size(), kParts) << "used: " << fmt::format("{}", fmt::join(parts, ", "));
  }
}

}  // namespace
}  // namespace espalier::random_runs_test
