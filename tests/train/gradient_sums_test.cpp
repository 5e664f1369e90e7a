// Sums of gradients keep their bits: over many micro-batches and replicas a run of 16 bits has the
// gradient norm and the losses of fp32 sums, without a key that requests it.
#include "src/train/stage/stage.h"
#include "tests/support/grid.h"
#include "tests/support/settings.h"

namespace espalier::gradient_sums_test {
namespace {

using namespace testing;

/// Of the first step.
double norm(const io::Config& config, int ranks = 1) {
  double found = 0;
  parallel::run_ranks(ranks, [&](parallel::Communicator& comm) {
    train::Trainer trainer(config, comm, {.resume = "none", .on_step = [&](const auto& report) {
                                            found = comm.rank() == 0 ? report.grad_norm : found;
                                          }});
    trainer.run();
  });
  return found;
}

io::Config one_step(const TempDir& dir, const std::string& dtype, int64_t micro_batches) {
  io::Config config = tiny_config(dir);
  config.train.dtype = dtype;
  apply_settings(config, "train.steps=1 train.micro_batch=1");
  config.train.global_batch = micro_batches;
  apply_settings(
      config, "pruning.method=random pruning.sparsity=0.9 optimizer.clip=0 train.eval_batches=1");
  return config;
}

using GradientSums = RunTest;

TEST_F(GradientSums, HaveTheNormOfOneBatch) {
  for (const std::string dtype : {"bf16", "fp16"}) {
    for (const int64_t micro_batches : {16, 512}) {
      SCOPED_TRACE(fmt::format("{} {}", dtype, micro_batches));
      config = one_step(dir, dtype, micro_batches);
      const double summed = norm(config);
      for (const int ranks : {2, 4}) {
        EXPECT_NEAR(norm(config, ranks) / summed, 1, 1e-3) << ranks;
      }
      config.train.micro_batch = micro_batches;
      config.train.gradient_dtype = "fp32";
      EXPECT_NEAR(norm(config) / summed, 1, 5e-3) << "products sum in fp32";
    }
  }
}

TEST_F(GradientSums, LoseTheNormIn16Bits) {
  config = one_step(dir, "bf16", 512);
  const double summed = norm(config);
  config.train.gradient_dtype = "bf16";
  EXPECT_LT(norm(config) / summed, 0.98);
}

TEST_F(GradientSums, TakeTwoMoreBytesOnlyWhereThereAreSeveralSummands) {
  config.train.dtype = "bf16";
  EXPECT_EQ(train::gradient_type(config, 1), DType::bf16);
  EXPECT_EQ(train::gradient_type(config, 2), DType::fp32);
  config.train.gradient_dtype = "bf16";
  EXPECT_EQ(train::gradient_type(config, 1024), DType::bf16);
  apply_settings(config, "train.dtype=fp32 train.gradient_dtype=auto");
  EXPECT_EQ(train::gradient_type(config, 1), DType::fp32);
}

}  // namespace
}  // namespace espalier::gradient_sums_test
