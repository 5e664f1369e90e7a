// Trainings of networks for images on the kernels of table "cuda" in the harness: near the CPU's,
// with the same bits again, within the planned memory; convolutions by cuDNN's replacement and by
// products with patches.
#include <cmath>

#include "src/kernels/cuda/table.h"
#include "tests/device/late_runs.h"
#include "tests/kernels/cudnn_way.h"
#include "tests/simt/cudnn_host.h"
#include "tests/support/image_files.h"

namespace espalier::simt_vision_test {
namespace {

using testing::Outcome;
using testing::run;
using testing::TempDir;

constexpr uint32_t kImages = 24;
constexpr uint32_t kEdge = 6;

struct Network {
  const char* name;
  std::vector<std::string> layers;
  const char* settings = "";
};

/// All layers of networks for images. 8 channels: cuDNN has all gradients in 16 bits.
const std::vector<Network>& networks() {
  static const std::vector<Network> all{
      {"residual", {"conv 8 3 norm", "basic 8 stride 2", "bottleneck 8", "wide 8", "norm"}},
      {"plain", {"conv 8 3", "lrn 3", "max 2", "conv 16 3 groups 2 stride 2", "mean", "linear 8"}},
      {"transformer", {"conv 8 3", "patch 16 2", "transformer 2", "token-mean"}},
      {"patches_of_inputs", {"patch 16 2", "transformer 2", "token-mean"}, "model.dropout=0.1"}};
  return all;
}

io::Config config_of(const TempDir& dir, const Network& network, const std::string& dtype) {
  io::Config config = testing::tiny_config(dir);
  testing::take_type(config, dtype);
  config.data = testing::write_images(dir, kImages, kEdge);
  config.model.kind = "vision";
  config.model.image = {kEdge, kEdge, 1};
  config.model.network = network.layers;
  config.train.global_batch = 4;
  config.train.micro_batch = 2;
  config.train.steps = 4;  // the last two replay
  config.train.eval_batches = 1;
  config.optimizer.lr = 1e-3;
  testing::apply_settings(config, network.settings);
  return config;
}

Outcome run_simt(const io::Config& config) {
  return run(config, 1, {.kernels = &kernels::cuda_simt::table()});
}

class SimtVision : public ::testing::TestWithParam<std::tuple<size_t, std::string>> {
 protected:
  void SetUp() override { simt::restart_cudnn_host(); }

  TempDir dir_;
  const Network& network_ = networks()[std::get<0>(GetParam())];
  const std::string dtype_ = std::get<1>(GetParam());
  io::Config config_ = config_of(dir_, network_, dtype_);
};

TEST_P(SimtVision, IsNearTheCpu) {
  const Outcome cpu = run(config_);
  const double near = dtype_ == "fp32" ? 2e-5 : 3e-2;
  Outcome first;
  for (const std::string way : {"auto", "own"}) {
    const testing::ConvolutionWay convolutions(way);
    const Outcome simt = run_simt(config_);
    ASSERT_EQ(simt.losses.size(), cpu.losses.size());
    for (size_t step = 0; step < cpu.losses.size(); ++step) {
      EXPECT_NEAR(simt.losses[step], cpu.losses[step], near) << way << " step " << step + 1;
    }
    EXPECT_NEAR(simt.val_loss, cpu.val_loss, near) << way;
    EXPECT_EQ(run_simt(config_), simt) << way;
  }
}

TEST_P(SimtVision, HoldsWhatWasPlanned) {
  testing::expect_planned_exactly(config_, kernels::cuda_simt::table());
}

INSTANTIATE_TEST_SUITE_P(Networks, SimtVision,
                         ::testing::Combine(::testing::Range(size_t{0}, networks().size()),
                                            ::testing::Values("fp32", "bf16", "fp16")),
                         [](const auto& one) {
                           return std::string(networks()[std::get<0>(one.param)].name) + "_" +
                                  std::get<1>(one.param);
                         });

/// Convolutions of networks go through the cuDNN layer.
TEST(SimtVisionByCudnn, ComputesConvolutions) {
  const TempDir dir;
  io::Config config = config_of(dir, networks().front(), "bf16");
  config.run.graphs = false;
  int64_t runs = 0;
  testing::on_ranks(1, [&](parallel::Communicator& comm) {
    simt::restart_cudnn_host();  // of the rank's thread
    train::Trainer(config, comm, {.resume = "none", .kernels = &kernels::cuda_simt::table()}).run();
    runs = simt::cudnn_host().runs;
  });
  EXPECT_GT(runs, 100);
}

}  // namespace
}  // namespace espalier::simt_vision_test
