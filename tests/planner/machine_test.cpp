// Machine files, and times of operations.
#include "src/planner/machine.h"

#include "tests/planner/given.h"
#include "tests/support/failure.h"

namespace espalier::planner::machine_test {
namespace {

using kernels::OperationRow;

TEST(MachineFile, IsReadAsWritten) {
  Machine machine = machine_of(kMachine);
  EXPECT_EQ(machine.levels.size(), 2U);
  EXPECT_EQ(machine.level_between(0, 3), 0U);
  EXPECT_EQ(machine.level_between(3, 4), 1U);
  machine.levels.back().shared = true;
  machine.measured["bf16 gemm"] = {{.name = "gemm",
                                    .extents = {1, 2, 3, 0},
                                    .calls = 1,
                                    .seconds = 1e-3,
                                    .cost = {.flops = 12, .bytes = 40}}};
  machine.host_memory = 5e10;
  machine.disk_write = 2e9;
  machine.disk_read = 3e9;
  const std::string text = text_of(machine);
  EXPECT_EQ(text_of(machine_of(text)), text);
  EXPECT_EQ(machine_of(text).disk_read, 3e9);
  EXPECT_TRUE(machine_of(text).levels.back().shared);
  EXPECT_EQ(machine_of(text).host_memory, 5e10);
}

TEST(MachineFile, ThoseOfTheProjectAreRead) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(ESPALIER_SOURCE_DIR) / "machines")) {
    const Machine machine = read_machine(entry.path());
    EXPECT_FALSE(machine.name.empty()) << entry.path();
    EXPECT_FALSE(machine.source.empty()) << entry.path();
    ++files;
  }
  EXPECT_GE(files, 6);
}

TEST(MachineFile, NamesWhatIsWrong) {
  const auto message = [](const std::string& from, const std::string& to) {
    return failure_of([&] { machine_of(replaced(kMachine, from, to)); });
  };
  EXPECT_THAT(message("bandwidth = 1e11", "bandwidth = 0"), HasSubstr("device.bandwidth = 0"));
  EXPECT_THAT(message("memory = 1e10", ""), HasSubstr("device.memory is missing"));
  EXPECT_THAT(message("[device.peak]", "[disk]\nwrite = 0\n[device.peak]"),
              HasSubstr("disk.write = 0"));
  EXPECT_THAT(message("[device.peak]", "[host]\nmemroy = 1\n[device.peak]"),
              HasSubstr("host.memroy"));
  EXPECT_THAT(message("ranks = 64", "ranks = 6"), HasSubstr("levels nest"));
  EXPECT_THAT(message("overhead_us", "overhaed_us"), HasSubstr("device.overhaed_us is no key"));
  EXPECT_THAT(message("product_share = 0.5", "product_share = 1.5"), HasSubstr("from 1e-06 to 1"));
  EXPECT_THAT(message("bandwidth = 1e11", "bandwidth = 1e-200"),
              HasSubstr("device.bandwidth = 1e-200"));
  EXPECT_THAT(message("bandwidth = 1e11", "bandwidth = 1e200"),
              HasSubstr("device.bandwidth = 1e+200"));
  const auto operation = [&](const std::string& text) {
    return message("[device.peak]", "[[operation]]\n" + text + "\n[device.peak]");
  };
  EXPECT_THAT(operation("name = \"gemm\"\npoints = []"), HasSubstr("begins with its type"));
  EXPECT_THAT(operation("name = \"fp32 gemm\"\npoints = []\npoint = 1"),
              HasSubstr("operation.point is"));
  EXPECT_THAT(operation("name = \"fp32 gemm\"\npoints = [[1.5, 0, 0, 0, 1, 1, 1]]"),
              HasSubstr("1.5 is impossible as number 1"));
  EXPECT_THAT(message("fp32 = 1e12\nbf16 = 4e12", ""), HasSubstr("add fp32, bf16 or fp16"));
  EXPECT_THAT(message("ranks = 4", "ranks = \"four\""),
              HasSubstr("level 1.ranks must be a number"));
}

TEST(MachineFile, DefaultsMayBeWritten) {
  const Machine machine = machine_of(
      replaced(replaced(kMachine, "[device.peak]", "score_passes = 0\nthreads = 1\n[device.peak]"),
               "overhead_us = 2", "overhead_us = 0"));
  EXPECT_EQ(machine.overhead_s, 0);
  EXPECT_EQ(machine.score_passes, 0);
}

/// Points without flops and bytes tell nothing.
TEST(MachineTimes, OfEmptyPointsAreShares) {
  Machine machine = machine_of(kMachine);
  const OperationRow gemm{.name = "gemm", .extents = {64, 64, 64, 0}, .cost = {524288, 49152}};
  const double share = seconds_of(machine, gemm, DType::fp32);
  machine.measured["fp32 gemm"] = {{.name = "gemm", .calls = 1, .seconds = 1}};
  EXPECT_EQ(seconds_of(machine, gemm, DType::fp32), share);
}

TEST(MachineTimes, UnfusedAttentionReadsAndWritesItsScores) {
  Machine machine = machine_of(kMachine);
  const OperationRow fused{
      .name = "attention", .extents = {2, 64, 4, 16}, .cost = {1000000, 100000}};
  OperationRow backward = fused;
  backward.name = "attention_backward";
  const auto more = [&](const OperationRow& row) {
    machine.score_passes = 0;
    const double whole = seconds_of(machine, row, DType::bf16);
    machine.score_passes = 6;
    return seconds_of(machine, row, DType::bf16) - whole;
  };
  const double pass = 2.0 * 2 * 4 * 64 * 64 / 8e10;  // bytes a score, sequences, heads, tokens²
  EXPECT_NEAR(more(fused), 6 * pass, 1e-15);
  EXPECT_NEAR(more(backward), 9 * pass, 1e-15);
  EXPECT_EQ(machine_of(text_of(machine)).score_passes, 6);
}

TEST(MachineTimes, AreMeasuredOnesOrSharesOfPeaks) {
  Machine machine = machine_of(kMachine);
  const OperationRow gemm{.name = "gemm", .extents = {64, 64, 64, 0}, .cost = {524288, 49152}};
  // 2 us + max(524,288 / (1e12 / 2), 49,152 / (1e11 0.8))
  EXPECT_NEAR(seconds_of(machine, gemm, DType::fp32), 2e-6 + 524288 / 5e11, 1e-12);
  EXPECT_NEAR(seconds_of(machine, gemm, DType::bf16), 2e-6 + 49152 / 8e10, 1e-12);
  OperationRow measured = gemm;
  measured.seconds = 7e-6;
  machine.measured["fp32 gemm"] = {measured};
  EXPECT_NEAR(seconds_of(machine, gemm, DType::fp32), 7e-6, 1e-9) << "exact where measured";
  OperationRow twice = gemm;
  twice.extents[0] *= 2;
  twice.cost = {2 * 524288, 2 * 49152};
  EXPECT_NEAR(seconds_of(machine, twice, DType::fp32), 14e-6, 1e-9) << "by work beside it";
  EXPECT_NEAR(seconds_of(machine, gemm, DType::bf16), 2e-6 + 49152 / 8e10, 1e-12)
      << "of another type";
}

}  // namespace
}  // namespace espalier::planner::machine_test
