// NCCL on a device with a single rank: messages to itself, and sums of one.
#include "parallel/transport/device/nccl_link.h"
#include "parallel/transport/thread_communicator.h"
#include "src/core/mirror.h"
#include "tests/cuda/place.h"
#include "tests/support/matchers.h"

namespace espalier::parallel::nccl_test {
namespace {

class Nccl : public testing::OnDevice {
 protected:
  void SetUp() override {
    testing::OnDevice::SetUp();
    testing::choose_nccl();
    if (!IsSkipped() && nccl::description() == "not found") {
      GTEST_SKIP() << "no libnccl.so.2 here: install NCCL, or set ESPALIER_NCCL_LIBRARY";
    }
  }
};

std::span<std::byte> bytes(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data), tensor.bytes()};
}

TEST_F(Nccl, OneRank) {
  const auto comm = self_communicator();
  kernels::Backend backend(*testing::device_table(), 1);
  Stream& stream = backend.stream();
  ASSERT_EQ(NcclLink::obstacle(*comm, stream), "");
  NcclLink link(*comm, stream);
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    constexpr int64_t kCount = 100'001;
    const Buffer x = stream.arena().allocate(Memory::scratch, "x", dtype, Shape{kCount});
    const Buffer y = stream.arena().allocate(Memory::scratch, "y", dtype, Shape{kCount});
    const Buffer sum = stream.arena().allocate(Memory::scratch, "sum", DType::fp32, Shape{kCount});
    for (int round = 0; round < 3; ++round) {
      backend.kernels().fill(stream, {.x = x.tensor(), .value = static_cast<float>(round + 1)});
      link.follow_compute();
      link.group("sending to itself", [&] {
        link.send(0, bytes(x.tensor()));
        link.receive(0, bytes(y.tensor()));
      });
      link.group("summing", [&] {
        link.all_reduce(y.tensor());
        link.reduce(0, x.tensor());
      });
      backend.kernels().cast(link.stream(), {.x = x.tensor(), .y = sum.tensor()});
      backend.kernels().cast(link.stream(),
                             {.x = y.tensor(), .y = sum.tensor(), .accumulate = true});
      link.lead_compute();
      EXPECT_THAT(Mirror(stream, sum.tensor()).read().host().span<float>(),
                  ::testing::Each(2.0F * static_cast<float>(round + 1)));
    }
  }
}

}  // namespace
}  // namespace espalier::parallel::nccl_test
