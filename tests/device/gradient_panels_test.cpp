// Panels of dense gradients beside a device: two, alternating, gathered by the second queue, where
// each wait is needed. Everywhere else a single panel, in order.
#include "sparse/store/gradient_panels.h"

#include <set>

#include "src/core/mirror.h"
#include "src/kernels/backend.h"
#include "tests/device/late_table.h"
#include "tests/simt/device.h"
#include "tests/support/matchers.h"

namespace espalier::sparse::gradient_panels_test {
namespace {

constexpr int64_t kCount = 12;

/// A backend with a buffer for the gathered values of four panels.
struct Panels {
  kernels::Backend backend;
  const kernels::Kernels& table;
  GradientPanels panels{backend.stream()};
  Buffer packed =
      backend.arena().allocate(Memory::scratch, "gathered", DType::fp32, Shape{4, kCount});
  std::vector<const void*> addresses;
  std::set<Stream*> gathered_by;

  explicit Panels(const kernels::Kernels& kernels) : backend(kernels, 1), table(kernels) {}

  /// Fills panels with 1, 2, 3 and 4, inside a pass or not; returns the gathered values.
  std::vector<float> run(bool in_pass) {
    Stream& stream = backend.stream();
    addresses.clear();
    if (in_pass) {
      panels.begin_pass();
    }
    for (int64_t i = 0; i < 4; ++i) {
      const Tensor panel = panels.take(DType::fp32, Shape{kCount});
      addresses.push_back(panel.data);
      table.fill(stream, {.x = panel, .value = static_cast<float>(i + 1)});
      panels.gather([&](Stream& with) {
        gathered_by.insert(&with);
        table.cast(with,
                   {.x = panel, .y = packed.tensor().row_range(i, 1).reshaped(Shape{kCount})});
      });
    }
    in_pass ? panels.end_pass() : panels.join();
    const Tensor all = packed.tensor().reshaped(Shape{4 * kCount});
    table.cast(stream, {.x = all, .y = all});
    const Mirror mirror(stream, packed.tensor());
    const auto got = mirror.read().host().span<float>();
    return {got.begin(), got.end()};
  }
};

std::vector<float> numbers() {
  std::vector<float> all;
  for (int64_t i = 0; i < 4 * kCount; ++i) {
    all.push_back(static_cast<float>(i / kCount + 1));
  }
  return all;
}

TEST(GradientPanels, AreTwoInTurnBesideADevice) {
  Panels late(testing::late_table());
  for (int pass = 0; pass < 3; ++pass) {
    EXPECT_EQ(late.run(true), numbers());
    EXPECT_NE(late.addresses[0], late.addresses[1]);
    EXPECT_EQ(late.addresses[0], late.addresses[2]);
    EXPECT_EQ(late.addresses[1], late.addresses[3]);
  }
  EXPECT_EQ(late.gathered_by, std::set{late.backend.stream().side()});
  EXPECT_EQ(late.panels.grown(), 2);
}

TEST(GradientPanels, AreOneInOrderOutsideOfPassesAndWithoutADevice) {
  for (const bool on_device : {true, false}) {
    Panels some(on_device ? testing::late_table() : kernels::by_name("cpu"));
    EXPECT_EQ(some.run(!on_device), numbers());
    EXPECT_EQ(std::set(some.addresses.begin(), some.addresses.end()).size(), 1U);
    EXPECT_EQ(some.gathered_by, std::set{&some.backend.stream()});
  }
}

TEST(GradientPanels, NeedEveryWait) {
  simt::forget_follow(-1);
  Panels(testing::late_table()).run(true);
  const int64_t waits = simt::follows();
  EXPECT_EQ(waits, 4 + 2 + 1) << "each gather, a panel's next product, and what comes after";
  int64_t races = 0;
  for (int64_t number = 0; number < waits; ++number) {
    simt::forget_follow(number);
    try {
      Panels(testing::late_table()).run(true);
    } catch (const Bug& bug) {
      EXPECT_THAT(bug.what(), HasSubstr("race: "));
      ++races;
    }
  }
  simt::forget_follow(-1);
  EXPECT_EQ(races, waits);
}

TEST(GradientPanels, GrowWhileAGatherIsUnderWay) {
  Panels late(testing::late_table());
  Stream& stream = late.backend.stream();
  late.panels.begin_pass();
  for (const int64_t count : {3, 5, 12}) {
    const Tensor panel = late.panels.take(DType::bf16, Shape{count});
    late.table.fill(stream, {.x = panel, .value = 7});
    late.panels.gather([&](Stream& with) {
      late.table.cast(
          with,
          {.x = panel,
           .y = late.packed.tensor().row_range(0, 1).reshaped(Shape{kCount}).elements(0, count)});
    });
  }
  late.panels.end_pass();
  const Mirror mirror(stream, late.packed.tensor());
  EXPECT_EQ(mirror.read().host().get<float>()[11], 7);
}

}  // namespace
}  // namespace espalier::sparse::gradient_panels_test
