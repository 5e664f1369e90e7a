// cuDNN accepts our graphs of attention and convolutions: plans for GPU descriptions, on machines
// without a GPU, with a deterministic engine where required, and a workspace of the queried size.
// Skipped where there is no cuDNN.
#include <dlfcn.h>

#include "src/core/error.h"
#include "src/kernels/cuda/attention/attention_plan.h"
#include "src/kernels/cuda/cudnn/library.h"
#include "src/kernels/cuda/dense/convolution_plan.h"
#include "tests/support/matchers.h"

namespace espalier::kernels::cuda::cudnn_plan_test {
namespace {

struct Gpu {
  const char* name;
  int capability, multiprocessors, shared_bytes;
};
/// All shapes are planned for the first, kFew for the others: a plan takes 0.2 s.
constexpr Gpu kGpus[] = {{"H200", 900, 132, 232'448}, {"A100", 800, 108, 166'912}};
constexpr int kFew = 2;

CudnnObject described(const Gpu& gpu) {
  const std::string json = fmt::format(
      R"({{"deviceName": "{}", "deviceVer": {}, "multiProcessorCount": {},
      "maxSharedMemoryPerBlockOptin": {}, "version": 1, "deviceId": 0, "cudaDeviceId": 0,
      "driverVer": 13000, "cudaDriverVer": 13000, "maxGridSize": [2147483647, 65535, 65535],
      "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536, "warpSize": 32,
      "maxSharedMemoryPerBlock": 49152, "reservedSharedMemoryPerBlock": 1024,
      "maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024,
      "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0, "supportCoopLaunch": 1,
      "smClockRateKHz": 1980000, "memClockRateKHz": 3201000, "l2CacheSize": 62914560,
      "totalGlobalMem": 80000000000}})",
      gpu.name, gpu.capability, gpu.multiprocessors, gpu.shared_bytes);
  CudnnObject made(cudnn::Kind::device);
  made.set(cudnn::Attribute::device_json, cudnn::Type::character, std::ssize(json), json.data());
  made.finish();
  return made;
}

class CudnnPlans : public ::testing::Test {
 protected:
  void SetUp() override {
    // Must be first: a library is loaded once under its name, and no test may touch a real device.
    ASSERT_NE(dlopen(ESPALIER_NO_DRIVER, RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
    if (cudnn_functions() == nullptr) {
      GTEST_SKIP() << cudnn_state();
    }
  }
};

TEST_F(CudnnPlans, are_made_for_shapes_of_attention) {
  for (const Gpu& gpu : kGpus) {
    const CudnnObject device = described(gpu);
    int shapes = 0;
    for (const auto& [tokens, heads, width] : {std::array<int64_t, 3>{1024, 12, 64},
                                               {1024, 25, 64},
                                               {1000, 3, 80},
                                               {77, 2, 96},
                                               {193, 2, 128},
                                               {64, 1, 8}}) {
      if (&gpu != kGpus && shapes++ == kFew) {
        break;
      }
      for (const auto& [backward, causal, deterministic] : {std::array<bool, 3>{false, true, true},
                                                            {true, true, true},
                                                            {true, true, false},
                                                            {false, false, true},
                                                            {true, false, true},
                                                            {true, false, false}}) {
        const AttentionKey key{backward, causal, deterministic, 5, tokens, heads, width};
        const CudnnSupport made = plan_attention(key, {.device = &device});
        ASSERT_TRUE(made.plan) << gpu.name << " " << tokens << "x" << width << ": " << made.why_not;
        EXPECT_LE(made.plan->workspace, attention_workspace(key));
        std::cout << fmt::format(
            "{} {}{}{} {} positions, {} heads of {}: engine {}, workspace {}\n", gpu.name,
            backward ? "backward" : "forward", causal ? "" : " of all",
            deterministic ? "" : " with a sum of dq", tokens, heads, width, made.plan->engine,
            made.plan->workspace);
      }
    }
  }
}

/// Layers of networks for images, in micro-batches. Windows: height, width, extent, stride,
/// padding.
const std::vector<ConvolutionKey>& convolutions() {
  static const std::vector<ConvolutionKey> all{
      {.window = {32, 32, 3, 1, 1}, .images = 128, .in = 64, .out = 64},
      {.window = {32, 32, 3, 2, 1}, .images = 128, .in = 64, .out = 128},
      {.window = {56, 56, 1, 2}, .images = 32, .in = 256, .out = 512},
      {.window = {27, 27, 5, 1, 2}, .images = 32, .in = 96, .out = 256},
      {.window = {4, 4, 3, 1, 1}, .images = 128, .in = 512, .out = 512},
      {.window = {224, 224, 7, 2, 3}, .images = 32, .in = 3, .out = 64},
      {.window = {224, 224, 16, 16}, .images = 32, .in = 3, .out = 384},
      {.window = {28, 28, 5}, .images = 32, .in = 1, .out = 20},
      {.window = {14, 13, 3, 1, 1}, .images = 7, .in = 33, .out = 17}};
  return all;
}

/// Plans for each part, type and shape. cuDNN may refuse
/// - fp32 whose operands may not be rounded to TF32,
/// - in 16 bits, gradients of weights and some biases where channels are not multiples of 8.
TEST_F(CudnnPlans, are_made_for_convolutions) {
  for (const Gpu& gpu : kGpus) {
    const CudnnObject device = described(gpu);
    int shapes = 0;
    for (ConvolutionKey key : convolutions()) {
      if (&gpu != kGpus && shapes++ == kFew) {
        break;
      }
      key.workspace = size_t{96} << 20;
      for (const auto& [part, bias, name] :
           {std::tuple{ConvolutionPart::forward, false, "forward"},
            {ConvolutionPart::forward, true, "forward with a bias"},
            {ConvolutionPart::input, false, "input"},
            {ConvolutionPart::weight, false, "weight"}}) {
        for (const auto& [dtype, tf32, type] : {std::tuple{DType::fp32, false, "fp32"},
                                                {DType::fp32, true, "tf32"},
                                                {DType::bf16, false, "bf16"},
                                                {DType::fp16, false, "fp16"}}) {
          key.part = part;
          key.bias = bias;
          key.dtype = dtype;
          key.tf32 = tf32;
          const CudnnSupport made = plan_convolution(key, {.device = &device});
          const bool exact = dtype == DType::fp32 && !tf32;
          const bool fused = dtype != DType::fp32 && (bias || part == ConvolutionPart::weight);
          const bool eighths = key.in % 8 == 0 && key.out % 8 == 0;
          EXPECT_TRUE(made.plan || exact || (fused && !eighths)) << made.why_not;
          EXPECT_TRUE(made.plan || !made.why_not.empty());
          EXPECT_TRUE(!made.plan || made.plan->workspace <= key.workspace);
          std::cout << fmt::format("{} {} {} {} x {} x {} to {}, window {}, stride {}: {}\n",
                                   gpu.name, name, type, key.window.height, key.window.width,
                                   key.in, key.out, key.window.extent, key.window.stride,
                                   made.plan ? fmt::format("engine {}, workspace {}",
                                                           made.plan->engine, made.plan->workspace)
                                             : made.why_not);
        }
      }
    }
  }
}

TEST_F(CudnnPlans, a_refusal_has_a_reason) {
  const CudnnObject device = described(kGpus[0]);
  const CudnnSupport made = plan_attention({false, true, true, 1, 128, 2, 12}, {.device = &device});
  EXPECT_FALSE(made.plan);
  EXPECT_THAT(made.why_not, HasSubstr("cuDNN has no plan"));
}

}  // namespace
}  // namespace espalier::kernels::cuda::cudnn_plan_test
