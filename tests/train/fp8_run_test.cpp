// Training with products in 8 bits: close to training without, with the same equalities. More of
// them: equality_test, type "fp8".
#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <tuple>

#include "tests/support/support.h"
#include "tests/support/ways.h"

namespace espalier::fp8_run_test {
namespace {

using namespace testing;

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::fabs(a[i] - b[i]));
  }
  return largest;
}

io::Config fp8_config(const TempDir& dir) {
  io::Config config = testing::tiny_config(dir);
  testing::take_type(config, "fp8");
  return config;
}

using kernels::Float8;
using kernels::GemmArgs;
/// {transpose_a, transpose_b}, and the formats of the rounded operands.
using Kind = std::tuple<bool, bool, Float8, Float8>;

std::map<Kind, int>& products() {
  static std::map<Kind, int> counted;
  return counted;
}
void count_product(Stream& stream, const GemmArgs& args) {
  ++products()[{args.transpose_a, args.transpose_b, args.round_a, args.round_b}];
  kernels::by_name("cpu").gemm(stream, args);
}

/// Forward, gradients of inputs and of weights of two blocks' four layers in E4M3, with dy in E5M2;
/// the head, in one chunk, is not rounded.
TEST(Fp8, RoundsGradientsToE5M2AndTheHeadNotAtAll) {
  const TempDir dir;
  io::Config config = fp8_config(dir);
  config.train.steps = 1;
  config.train.eval_batches = 1;
  kernels::Kernels table = kernels::by_name("cpu");
  table.gemm = count_product;
  products().clear();
  run(config, 1, {.kernels = &table});
  const std::map<Kind, int> right{
      {{false, true, Float8::e4m3, Float8::e4m3}, 16},  // evaluation, too
      {{false, false, Float8::e5m2, Float8::e4m3}, 8},
      {{true, false, Float8::e5m2, Float8::e4m3}, 8},
      {{false, true, Float8::none, Float8::none}, 2},
      {{false, false, Float8::none, Float8::none}, 1},
      {{true, false, Float8::none, Float8::none}, 1}};
  EXPECT_EQ(products(), right);
}

/// In 60 steps the loss decreases by more than one.
TEST(Fp8, TrainsAsWellAsBf16AndNotTheSame) {
  const TempDir dir;
  io::Config config = fp8_config(dir);
  config.train.steps = 60;
  config.optimizer.lr = 3e-3;
  const Outcome rounded = run(config);
  config.train.fp8 = false;
  const Outcome plain = run(config);
  EXPECT_LT(rounded.losses.back(), rounded.losses.front() - 1);
  const double difference = largest_difference(rounded.losses, plain.losses);
  EXPECT_GT(difference, 1e-4);
  EXPECT_LT(difference, 5e-3);  // measured: 1.7e-3
  EXPECT_NEAR(rounded.val_loss, plain.val_loss, 5e-3);
}

TEST(Fp8, RoundsTheSameInDenseAndExpanded) {
  const TempDir dir;
  io::Config config = fp8_config(dir);
  testing::prune(config);
  const Outcome dense = run(config);
  config.sparse.storage.fallback = "expanded";
  EXPECT_EQ(run(config), dense);
}

/// Products of kept elements are not in 8 bits, and a note reports it.
TEST(Fp8, LeavesSparseProductsOut) {
  const TempDir dir;
  io::Config config = fp8_config(dir);
  testing::prune_sparse(config);
  config.pruning.at_step = 0;
  std::string notes;
  const train::TrainerOptions options{
      .on_note = [&](const std::string& text) { notes += text + "\n"; }};
  const Outcome outcome = run(config, 1, options);
  EXPECT_THAT(notes, ::testing::HasSubstr("train.fp8: once pruned, 8 of 8 hidden layers"));
  config.train.fp8 = false;
  EXPECT_EQ(run(config), outcome);
  config.train.fp8 = true;
  config.sparse.storage.fallback = "dense";
  notes.clear();
  EXPECT_NE(run(config, 1, options), outcome);
  EXPECT_EQ(notes.find("train.fp8"), std::string::npos);
}

/// A scale belongs to a micro-batch, so stages change nothing.
TEST(Fp8, IsTheSameInAPipeline) {
  const TempDir dir;
  io::Config config = fp8_config(dir);
  config.train.micro_batch = 3;
  const Outcome one = run(config);
  config.parallel.pipeline = 2;
  config.parallel.partition = {2, 2};
  for (const char* schedule : {"1f1b", "zero-bubble"}) {
    config.parallel.schedule = schedule;
    const Outcome two = run(config, 2);
    EXPECT_EQ(two.losses, one.losses) << schedule;
    for (const auto& [name, values] : two.values) {  // of the first stage
      EXPECT_EQ(values, one.values.at(name)) << schedule << " " << name;
    }
  }
}

/// Ranks sum the same terms as micro-batches of one rank, in another order.
TEST(Fp8, IsNearlyTheSameOnTwoRanks) {
  const TempDir dir;
  io::Config config = fp8_config(dir);
  config.train.gradient_dtype = "fp32";
  config.train.micro_batch = 6;
  const Outcome one = run(config, 1);
  const Outcome two = run(config, 2);
  config.train.fp8 = false;
  const double of_rounding = largest_difference(run(config, 1).losses, one.losses);
  EXPECT_LT(largest_difference(two.losses, one.losses), of_rounding);
  config.train.fp8 = true;
  config.parallel.zero = 1;
  EXPECT_EQ(run(config, 2), two) << "the optimizer's state shared out";
}

}  // namespace
}  // namespace espalier::fp8_run_test
