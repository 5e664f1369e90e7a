// The host's copy of an array on a device: each element crosses the bus once in each direction.
#include <gtest/gtest.h>

#include <cstring>

#include "parallel/reduction/buckets.h"
#include "parallel/transport/thread_communicator.h"

namespace espalier::parallel::host_copy_test {
namespace {

/// Copies at once, and counts bytes.
class CountingQueue final : public Queue {
 public:
  void synchronize() override {}
  void copy(void* to, const void* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
    copied += bytes;
  }
  Mark mark() override { return 0; }
  bool passed(Mark /*mark*/) override { return true; }
  void wait(Mark /*mark*/) override {}
  std::unique_ptr<Queue> make_queue() override { return std::make_unique<CountingQueue>(); }
  void follow(Queue& /*other*/, Mark /*mark*/) override {}
  void* handle() override { return nullptr; }
  std::string device_id() const override { return "none"; }

  size_t copied = 0;
};

/// As steps that choose codecs do: a reader sees the gradient on the host, then it is summed.
TEST(HostCopy, IsMadeOnceForAReaderAndASum) {
  run_ranks(2, [](Communicator& comm) {
    CountingQueue queue;
    Arena host;
    Arena device(host, &host_memory());
    Stream compute(device, 1, &queue);
    HostBuckets buckets(comm, host, {.compute = &compute});
    const Buffer memory = device.allocate(Memory::gradient, "gradient", DType::fp32, {1000});
    const Tensor& gradient = memory.tensor();
    auto* const numbers = static_cast<float*>(gradient.data);
    for (const bool reads : {true, false, true}) {
      std::fill_n(numbers, 1000, 1.0F);
      queue.copied = 0;
      if (reads) {
        EXPECT_EQ(buckets.on_host(gradient).get<float>()[999], 1);
        EXPECT_EQ(queue.copied, gradient.bytes());
      }
      buckets.begin(all_reduce_step(gradient, {}));
      buckets.finish();
      EXPECT_EQ(queue.copied, 2 * gradient.bytes()) << "to the host, and the sum back";
      EXPECT_EQ(numbers[999], 2);
    }
  });
}

/// Another array, or a part of it, is copied though the reader had the whole.
TEST(HostCopy, IsOfTheArrayOfTheStep) {
  run_ranks(2, [](Communicator& comm) {
    CountingQueue queue;
    Arena host;
    Arena device(host, &host_memory());
    Stream compute(device, 1, &queue);
    HostBuckets buckets(comm, host, {.compute = &compute});
    const Buffer memory = device.allocate(Memory::gradient, "gradient", DType::fp32, {1000});
    auto* const numbers = static_cast<float*>(memory.tensor().data);
    buckets.on_host(memory.tensor());
    std::fill_n(numbers, 1000, 3.0F);
    buckets.begin(all_reduce_step(memory.tensor().elements(0, 500), {}));
    buckets.finish();
    EXPECT_EQ(numbers[499], 6);
    EXPECT_EQ(numbers[500], 3);
  });
}

}  // namespace
}  // namespace espalier::parallel::host_copy_test
