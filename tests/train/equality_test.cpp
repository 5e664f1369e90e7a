// Equalities on which the project relies: full mask = dense, p ranks = 1 rank, resume = no break,
// any index = any other, overlap = none, micro-batches = one batch. Bitwise wherever the arithmetic
// is the same.
#include <cmath>

#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::equality_test {
namespace {

using namespace testing;

io::Config pruned(io::Config config, double sparsity = 0.75) {
  testing::prune(config);
  config.pruning.sparsity = sparsity;
  return config;
}

/// Numbers of threads that a run can be compared with. With AVX-512 oneDNN divides products among
/// threads, and for some shapes also their sums; only the shapes of the tiny GPT are known to keep
/// their bits there.
std::vector<int64_t> other_threads(const io::Config& config) {
  const bool known = config.model.kind == "gpt" || __builtin_cpu_supports("avx512f") == 0;
  return known ? std::vector<int64_t>{2, 3} : std::vector<int64_t>();
}

class Types : public RunTestWithParam<std::string> {
 protected:
  Types() { take_type(config, GetParam()); }
};

TEST_P(Types, FullMaskIsDense) {
  const Outcome dense = run(config);
  EXPECT_EQ(run(pruned(config, 0.0)), dense);
}

TEST_P(Types, EveryIndexGivesTheSameRun) {
  config = pruned(config);
  config.sparse.index.fallback = "int32";
  const Outcome reference = run(config);
  for (const char* index : {"golomb", "bitmap", "auto"}) {
    config.sparse.index.fallback = index;
    EXPECT_EQ(run(config), reference) << index;
  }
}

/// Activations recomputed in backward have the bits of those discarded in forward, also where a
/// sparse product computes the activation itself.
TEST_P(Types, RecomputeChangesNoBit) {
  for (const std::string storage : {"dense", "expanded", "sparse", "tiles", "block"}) {
    SCOPED_TRACE(storage);
    config = pruned(config);
    apply_settings(config, "pruning.at_step=0 pruning.scope=layer");
    if (storage == "block") {
      apply_settings(config, "pruning.method=block pruning.block=8");
    }
    apply_settings(config, fmt::format("sparse.storage={} train.recompute=none", storage));
    const Outcome kept = run(config);
    for (const std::string recompute : {"selective", "full"}) {
      config.train.recompute = recompute;
      EXPECT_EQ(run(config), kept) << recompute;
    }
  }
}

/// Masks move while tiles are kept; the first products of a mask make them, the others fill them.
TEST_P(Types, KeptTilesChangeNoBit) {
  config = pruned(config);
  apply_settings(config, "pruning.method=rigl pruning.at_step=2 pruning.every=2");
  config.pruning.to_step = config.train.steps;
  config.sparse.storage.fallback = "sparse";
  const Outcome made = run(config);
  config.sparse.storage.fallback = "tiles";
  for (const char* index : {"golomb", "bitmap", "int32"}) {
    config.sparse.index.fallback = index;
    EXPECT_EQ(run(config), made) << index;
  }
  for (const int64_t threads : other_threads(config)) {
    config.run.threads = threads;
    EXPECT_EQ(run(config), made) << threads << " threads";
  }
  EXPECT_EQ(run_with_breaks(config, 1, {3, 4}), made);
}

/// At densities where some products run on a CPU's matrix unit and others do not.
TEST_P(Types, KeptTilesChangeNoBitAtAnyDensity) {
  config = pruned(config);
  for (const double sparsity : {0.8, 0.9, 0.95}) {
    apply_settings(config, fmt::format("pruning.sparsity={} sparse.storage=sparse", sparsity));
    const Outcome made = run(config);
    config.sparse.storage.fallback = "tiles";
    EXPECT_EQ(run(config), made) << sparsity;
  }
}

TEST_P(Types, ResumeIsNoBreak) {
  config = pruned(config);
  const Outcome whole = run(config);
  // Before, at and after the pruning.
  EXPECT_EQ(run_with_breaks(config, 1, {2, 4, 7}), whole);
  EXPECT_EQ(io::read_metrics(dir / "run/metrics.jsonl").size(), whole.losses.size());
}

TEST_P(Types, ThreadsOverlapAndBucketsDoNotChangeBits) {
  config = pruned(config);
  const Outcome reference = run(config, 2);
  EXPECT_EQ(run(config, 2), reference) << "the same again";
  for (const int64_t threads : other_threads(config)) {
    config.run.threads = threads;
    EXPECT_EQ(run(config, 2), reference) << threads << " threads";
  }
  apply_settings(config, "run.threads=1 parallel.overlap=false");
  EXPECT_EQ(run(config, 2), reference) << "without overlap";
  config.parallel.bucket_mb = 64;
  EXPECT_EQ(run(config, 2), reference) << "one bucket";
}

INSTANTIATE_TEST_SUITE_P(DTypes, Types,
                         ::testing::Values("fp32", "bf16", "fp16", "fp32 llama", "bf16 qwen3",
                                           "bf16 neox"));

using Ranks = RunTestWithParam<int>;

/// The same samples, summed in another order. Gradients of fp32 sums of about 200 rows differ by
/// some 1e-7 of their size. Adam turns that into at most the same relative change of a step of
/// 1e-3, except where a gradient is itself rounding noise: there the difference could be a whole
/// step (lr).
TEST_P(Ranks, MatchOneRank) {
  for (const std::string settings : {"", "family:llama", "family:neox"}) {
    SCOPED_TRACE(settings);
    config = pruned(tiny_config(dir));
    apply_settings(config, settings);
    const Outcome one = run(config, 1);
    const Outcome many = run(config, GetParam());
    EXPECT_THAT(many.losses, AreNear(one.losses, 2e-6));
    EXPECT_NEAR(many.val_loss, one.val_loss, 2e-6);
    EXPECT_EQ(many.positions, one.positions);
    EXPECT_LT(largest_difference(many, one), config.optimizer.lr);
  }
}

/// Without a norm to clip, an update of SGD is proportional to the gradient, so that a wrong factor
/// of the gradient, which cancels in Adam's update, changes the weights by about lr.
TEST_P(Ranks, MatchOneRankInTheScaleOfGradients) {
  config = pruned(config);
  apply_settings(config, "optimizer.kind=sgd optimizer.lr=0.1 optimizer.clip=0");
  const Outcome one = run(config, 1);
  for (const int64_t zero : {0, 1}) {
    config.parallel.zero = zero;
    const Outcome many = run(config, GetParam());
    EXPECT_EQ(many.positions, one.positions);
    EXPECT_LT(largest_difference(many, one), 1e-6) << "zero = " << zero;
    EXPECT_NEAR(many.val_loss, one.val_loss, 2e-6) << "zero = " << zero;
  }
}

/// As in KeptTilesChangeNoBit, for two ranks.
TEST_P(Ranks, KeepTilesWithoutChangingABit) {
  config = pruned(config);
  apply_settings(config, "pruning.method=rigl pruning.at_step=2 pruning.every=2");
  config.pruning.to_step = config.train.steps;
  config.sparse.storage.fallback = "sparse";
  const Outcome made = run(config, GetParam());
  config.sparse.storage.fallback = "tiles";
  EXPECT_EQ(run(config, GetParam()), made);
}

INSTANTIATE_TEST_SUITE_P(Numbers, Ranks, ::testing::Values(2, 3, 4));

using Equality = RunTest;

TEST_F(Equality, MicroBatchesMatchOneBatch) {
  config = pruned(tiny_config(dir));
  const Outcome whole = run(config);
  config.train.micro_batch = 3;
  const Outcome parts = run(config);
  EXPECT_THAT(parts.losses, AreNear(whole.losses, 2e-6));
}

TEST_F(Equality, DropoutIgnoresRanksAndMicroBatches) {
  config.model.dropout = 0.2;
  const Outcome one = run(config);
  config.train.micro_batch = 2;
  const Outcome split = run(config, 3);
  EXPECT_THAT(split.losses, AreNear(one.losses, 2e-6));
  config.model.dropout = 0;
  EXPECT_GT(std::abs(run(config, 1).losses[0] - one.losses[0]), 1e-4) << "dropout does something";
}

TEST_F(Equality, ResumeOnAnotherNumberOfRanks) {
  config = pruned(tiny_config(dir));
  const Outcome whole = run(config, 1);
  run(config, 2, {.stop_after = 6});
  const Outcome resumed = run(config, 3, {.resume = "auto"});
  EXPECT_EQ(resumed.positions, whole.positions);
  EXPECT_NEAR(resumed.losses.back(), whole.losses.back(), 2e-6);
}

/// Pruned training sends and stores only kept elements: checked by bytes.
TEST_F(Equality, SparseBytesScaleWithDensity) {
  config.train.steps = 8;
  run(config, 2);
  const auto dense = io::read_metrics(dir / "run/metrics.jsonl").back();
  const auto dense_summary = testing::read_json(dir / "run/summary.json");
  run(pruned(config, 0.9), 2);
  const auto sparse = io::read_metrics(dir / "run/metrics.jsonl").back();
  const auto summary = testing::read_json(dir / "run/summary.json");
  const double prunable = summary["prunable_parameters"].get<double>() * 4;
  const double saved =
      dense["allreduce_bytes"].get<double>() - sparse["allreduce_bytes"].get<double>();
  // Two ranks: each sends 2 (p - 1) / p = 1 times the gradient's bytes.
  EXPECT_NEAR(saved / prunable, 0.9, 0.01);
  EXPECT_LT(summary["memory"]["total"]["moment"]["bytes"].get<double>(),
            0.5 * dense_summary["memory"]["total"]["moment"]["bytes"].get<double>());
}

}  // namespace
}  // namespace espalier::equality_test
