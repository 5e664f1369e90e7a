// The simulated device finds the errors it is for: a host that touches its memory, foreign
// addresses, results read without a wait, memory used after it was freed.
#include "src/core/exact_sum.h"
#include "src/core/mirror.h"
#include "src/core/staging.h"
#include "src/kernels/backend.h"
#include "tests/device/late_table.h"
#include "tests/simt/device.h"
#include "tests/support/matchers.h"

namespace espalier::simulated_device_test {
namespace {

class Double : public ::testing::Test {
 protected:
  Buffer numbers(int64_t count, float value) {
    Buffer made = arena().allocate(Memory::scratch, "numbers", DType::fp32, Shape{count});
    table().fill(stream(), {.x = made.tensor(), .value = value});
    return made;
  }
  const kernels::Kernels& table() { return testing::late_table(); }
  Arena& arena() { return backend_.arena(); }
  Stream& stream() { return backend_.stream(); }
  simt::GuardedQueue& queue() { return dynamic_cast<simt::GuardedQueue&>(*stream().queue()); }

  kernels::Backend backend_{testing::late_table(), 1};
};

TEST_F(Double, TensorsOfADeviceAreNotForTheHost) {
  const Buffer numbers = this->numbers(8, 1);
  EXPECT_THROW(numbers.tensor().get<float>(), Bug);
  EXPECT_THROW(numbers.tensor().span<float>(), Bug);
  EXPECT_THROW(numbers.tensor().row_range(0, 1).get<float>(), Bug);
  EXPECT_THROW(numbers.tensor().elements(2, 3).reshaped({3, 1}).get<float>(), Bug);
}

TEST_F(Double, AHostThatTouchesItsMemoryFaults) {
  const Buffer numbers = this->numbers(8, 1);
  stream().synchronize();
  auto* data = static_cast<volatile float*>(numbers.tensor().data);
  EXPECT_DEATH(static_cast<void>(data[0]), "");
  EXPECT_DEATH(data[7] = 1, "");
}

TEST_F(Double, AddressesOfTheHostAreRefused) {
  std::vector<float> mine(8);
  const Tensor x(mine.data(), DType::fp32, Shape{8});
  EXPECT_THROW(table().fill(stream(), {.x = x, .value = 1}), Bug);
  const Buffer numbers = this->numbers(8, 1);
  std::vector<uint64_t> counts(ExactSum::kWords);
  const Tensor sum(counts.data(), DType::uint64, Shape{ExactSum::kWords});
  EXPECT_THROW(
      table().sum_squares(stream(), kernels::SumSquaresArgs{.x = numbers.tensor(), .counts = sum}),
      Bug);
}

TEST_F(Double, NothingIsDoneBeforeSomebodyWaits) {
  const Buffer numbers = this->numbers(4, 3);
  const Buffer host = arena().host().allocate(Memory::scratch, "copy", DType::fp32, Shape{4});
  queue().device().collect_races();
  stream().copy(numbers.tensor(), host.tensor());
  const auto copied = host.tensor().span<float>();
  EXPECT_THAT(copied, ::testing::Each(0.0F));
  const Mark mark = stream().mark();
  EXPECT_FALSE(stream().passed(mark));
  stream().wait(mark);
  EXPECT_TRUE(stream().passed(mark));
  EXPECT_THAT(copied, ::testing::Each(3.0F));
}

TEST_F(Double, PollingBringsTheQueueForward) {
  const Buffer numbers = this->numbers(4, 3);
  const Mark mark = stream().mark();
  int polls = 1;
  while (!stream().passed(mark)) {
    ++polls;
  }
  EXPECT_GT(polls, 4);
  EXPECT_EQ(queue().waited(), 0);
}

TEST_F(Double, MemoryIsGivenBackWhenTheQueueIsEmpty) {
  Buffer numbers = this->numbers(4, 3);
  EXPECT_GT(queue().waiting(), 0);
  auto* data = static_cast<volatile float*>(numbers.tensor().data);
  numbers.release();
  EXPECT_EQ(queue().waiting(), 0);
  EXPECT_DEATH(static_cast<void>(data[0]), "");
}

TEST(Exhausted, SaysWhatIsInUse) {
  struct Little final : MemorySource {
    void* allocate(size_t bytes) override { return bytes > 100 ? nullptr : memory; }
    void free(void*, size_t) noexcept override {}
    alignas(64) std::byte memory[128];
  } little;
  Arena host;
  Arena arena(host, &little);
  const Buffer weights = arena.allocate(Memory::weight, "value", DType::uint8, Shape{100});
  EXPECT_THAT(
      [&] { arena.allocate(Memory::activation, "tape", DType::uint8, Shape{200}); },
      ::testing::ThrowsMessage<Failure>(::testing::AllOf(
          ::testing::HasSubstr("on the device"), ::testing::HasSubstr("200 bytes of activation"),
          ::testing::HasSubstr("weight 100"))));
  EXPECT_EQ(arena.total().now, 100U);
}

TEST_F(Double, MirrorsHaveTwoSides) {
  const Buffer numbers = this->numbers(4, 3);
  const Mirror mirror(stream(), numbers.tensor());
  EXPECT_THAT(mirror.read().host().span<float>(), ::testing::Each(3.0F));
  mirror.host().get<float>()[1] = 5;
  mirror.write();
  EXPECT_THAT(Mirror(stream(), numbers.tensor()).read().host().span<float>(),
              ::testing::ElementsAre(3, 5, 3, 3));

  std::vector<float> mine{1, 2, 3, 4};
  const Mirror lent = Mirror::of_host(stream(), {mine.data(), DType::fp32, Shape{4}});
  lent.write();
  table().cast(stream(), {.x = numbers.tensor(), .y = lent.device(), .accumulate = true});
  lent.read();
  EXPECT_THAT(mine, ::testing::ElementsAre(4, 7, 6, 7));
}

TEST_F(Double, StagingHoldsAsMuchAsIsUnderWay) {
  Staging staging(stream());
  const Buffer to = numbers(4, 0);
  const auto send = [&](float value) {
    const Tensor host = staging.host_memory(to.tensor());
    std::ranges::fill(host.span<float>(), value);
    staging.send(host, to.tensor());
    return host.data;
  };
  const void* const first = send(1);
  EXPECT_NE(send(2), first) << "the first is still to be copied";
  stream().synchronize();
  EXPECT_THAT(Mirror(stream(), to.tensor()).read().host().span<float>(), ::testing::Each(2.0F));
  EXPECT_EQ(send(3), first) << "free again";
  const Staging::Arrival arrival = staging.fetch(to.tensor());
  stream().wait(arrival.mark);
  EXPECT_THAT(arrival.host.span<float>(), ::testing::Each(3.0F));
}

}  // namespace
}  // namespace espalier::simulated_device_test
