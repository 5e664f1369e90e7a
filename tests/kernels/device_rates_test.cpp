// The rates of GPUs printed by `espalier info`, against NVIDIA's data sheets.
#include "src/kernels/device_rates.h"

#include <gtest/gtest.h>

namespace espalier::kernels::device_rates_test {
namespace {

TEST(DeviceRates, AreThoseOfDataSheetsAtTheirClocks) {
  // A100 40 GB: 108 multiprocessors at 1,410 MHz: 312 TFLOP/s; HBM2 at 1,215 MHz, 5,120 bits: 1,555
  // GB/s.
  EXPECT_EQ(rates_text({8, 0, 108, 1'410'000, 1'215'000, 5120}),
            "at most 312 TFLOP/s of dense bf16 (at 1,410 MHz) and 1,555 GB/s of memory");
  // H100 SXM: 132 at 1,830 MHz: 989 TFLOP/s; HBM3 at 2,619 MHz, 5,120 bits: 3,352 GB/s.
  EXPECT_EQ(rates_text({9, 0, 132, 1'830'000, 2'619'000, 5120}),
            "at most 989 TFLOP/s of dense bf16 (at 1,830 MHz) and 3,352 GB/s of memory");
}

TEST(DeviceRates, OmitWhatIsUnknown) {
  EXPECT_EQ(rates_text({9, 0, 132, 1'980'000, 3'125'000, 6144}),
            "at most 1,071 TFLOP/s of dense bf16 (at 1,980 MHz) and 4,800 GB/s of memory");
  EXPECT_EQ(rates_text({8, 9, 128, 2'520'000, 10'501'000, 384}), "at most 1,008 GB/s of memory");
  EXPECT_EQ(rates_text({9, 0, 132, 1'980'000, 0, 0}),
            "at most 1,071 TFLOP/s of dense bf16 (at 1,980 MHz)");
  EXPECT_EQ(rates_text({}), "");
}

}  // namespace
}  // namespace espalier::kernels::device_rates_test
