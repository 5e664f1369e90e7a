// cuDNN accepts our graphs of attention: plans for GPU descriptions, on machines without a GPU,
// with a deterministic engine where required, and a workspace of the queried size. Skipped where
// there is no cuDNN.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "src/core/error.h"
#include "src/kernels/cuda/cudnn/library.h"

namespace espalier::kernels::cuda::cudnn_plan_test {
namespace {

struct Gpu {
  const char* name;
  int capability, multiprocessors, shared_bytes;
};
constexpr Gpu kGpus[] = {{"H200", 900, 132, 232'448}, {"A100", 800, 108, 166'912}};

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
    for (const auto& [tokens, heads, width] : {std::array<int64_t, 3>{1024, 12, 64},
                                               {1024, 25, 64},
                                               {1000, 3, 80},
                                               {77, 2, 96},
                                               {193, 2, 128},
                                               {64, 1, 8}}) {
      for (const auto& [backward, causal, deterministic] : {std::array<bool, 3>{false, true, true},
                                                            {true, true, true},
                                                            {true, true, false},
                                                            {false, false, true},
                                                            {true, false, true},
                                                            {true, false, false}}) {
        const AttentionKey key{backward, causal, deterministic, 5, tokens, heads, width};
        const AttentionPlan made = plan_attention(key, {.device = &device});
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

TEST_F(CudnnPlans, a_refusal_has_a_reason) {
  const CudnnObject device = described(kGpus[0]);
  const AttentionPlan made =
      plan_attention({false, true, true, 1, 128, 2, 12}, {.device = &device});
  EXPECT_FALSE(made.plan);
  EXPECT_NE(made.why_not.find("cuDNN has no plan"), std::string::npos) << made.why_not;
}

}  // namespace
}  // namespace espalier::kernels::cuda::cudnn_plan_test
