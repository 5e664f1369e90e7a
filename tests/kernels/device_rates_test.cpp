// The rates of GPUs printed by `espalier info`, against NVIDIA's data sheets.
#include "src/kernels/device_rates.h"

#include <gtest/gtest.h>

namespace espalier::kernels {
namespace {

TEST(DeviceRates, AreThoseOfDataSheetsAtTheirClocks) {
  // A100 40 GB: 108 multiprocessors at 1,410 MHz: 312 TFLOP/s; HBM2 at 1,215 MHz, 5,120 bits: 1,555
  // GB/s.
  const DeviceRates a100 = rates_of({8, 0, 108, 1'410'000, 1'215'000, 5120});
  EXPECT_NEAR(a100.dense_bf16, 312e12, 0.5e12);
  EXPECT_NEAR(a100.memory, 1555e9, 1e9);
  // H100 SXM: 132 at 1,830 MHz: 989 TFLOP/s; HBM3 at 2,619 MHz, 5,120 bits: 3,352 GB/s.
  const DeviceRates h100 = rates_of({9, 0, 132, 1'830'000, 2'619'000, 5120});
  EXPECT_NEAR(h100.dense_bf16, 989.5e12, 1e12);
  EXPECT_NEAR(h100.memory, 3352e9, 1e9);
}

TEST(DeviceRates, AreToldAsFarAsTheyAreKnown) {
  EXPECT_EQ(rates_text({9, 0, 132, 1'980'000, 3'125'000, 6144}),
            "at most 1,071 TFLOP/s of dense bf16 (at 1,980 MHz) and 4,800 GB/s of memory");
  EXPECT_EQ(rates_text({8, 9, 128, 2'520'000, 10'501'000, 384}), "at most 1,008 GB/s of memory");
  EXPECT_EQ(rates_text({9, 0, 132, 1'980'000, 0, 0}),
            "at most 1,071 TFLOP/s of dense bf16 (at 1,980 MHz)");
  EXPECT_EQ(rates_text({}), "");
}

}  // namespace
}  // namespace espalier::kernels
