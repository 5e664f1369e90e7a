// run.operation_times: the table of times in summary.json, and that measuring changes no bit.
#include <algorithm>
#include <limits>
#include <map>

#include "io/run/parse_json.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::testing::operation_times_test {
namespace {

nlohmann::json summary_of(const io::Config& config) {
  return io::parse_json(
      io::read_text(std::filesystem::path(config.run.out) / "summary.json", "summary"));
}

io::Config config_of(const TempDir& dir) {
  io::Config config = tiny_config(dir);
  apply_settings(config, "prune_sparse train.micro_batch=4");
  return config;
}

using OperationTimes = RunTest;

TEST_F(OperationTimes, AreInTheSummaryAndChangeNoBit) {
  config = config_of(dir);
  const Outcome plain = run(config);
  EXPECT_FALSE(summary_of(config).contains("operation_times"));
  config.run.operation_times = true;
  EXPECT_EQ(run(config), plain);

  const auto times = summary_of(config)["operation_times"];
  EXPECT_EQ(times["steps"], config.train.steps - 3) << "without the first three";
  double before = std::numeric_limits<double>::infinity();
  std::map<std::string, int64_t> calls;
  for (const auto& row : times["rows"]) {
    EXPECT_LE(row["ms_per_step"], before) << "the longest first";
    before = row["ms_per_step"];
    EXPECT_GT(before, 0);
    const std::string text = row["operation"];
    calls[text] += row["calls"].get<int64_t>();
    calls[text.substr(0, text.find(' '))] += row["calls"].get<int64_t>();
  }
  const int64_t micro_batches = config.train.steps - 3;
  EXPECT_EQ(calls["attention_backward"], micro_batches * 3 * config.model.layers);
  EXPECT_EQ(calls["attention"], calls["attention_backward"]) << "the evaluation does not count";
  EXPECT_GT(calls["sddmm"], 0);
  EXPECT_GT(calls["attention 4x16x2x16"], 0);
  // The head: [12 * 16 / 3 tokens, characters, width].
  EXPECT_TRUE(std::ranges::any_of(
      calls, [](const auto& one) { return one.first.starts_with("gemm 64x"); }));
}

TEST_F(OperationTimes, CountStepsSinceAResume) {
  config = config_of(dir);
  config.run.operation_times = true;
  run(config, 1, {.stop_after = 5});
  EXPECT_EQ(summary_of(config)["operation_times"]["steps"], 2);
  run(config, 1, {.resume = "auto"});
  EXPECT_EQ(summary_of(config)["operation_times"]["steps"], config.train.steps - 5 - 3);
}

}  // namespace
}  // namespace espalier::testing::operation_times_test
