// espalier plan-communication: the paper's tables, predictions for given times, wrong usage.
#include "tests/support/program.h"

namespace espalier::cli_plan_test {
namespace {

using Json = nlohmann::json;
const std::string kRanks =
    "plan-communication ranks --forward-ms 60 --backward-ms 120 --parameters 10.8e6 ";

using PlanCommand = ProgramTest;

TEST_F(PlanCommand, WithoutArgumentsThePapersTables) {
  const Ran text = here.ok("plan-communication");
  for (const char* cell : {"3.53 / 3.53", "3.67 / 3.67", "3.71 / 3.71", "3.8 / 3.80",
                           "50.6 / 50.64", "23 / 22.98", "6.81", "7.01"}) {
    EXPECT_THAT(text.out, HasSubstr(cell)) << cell;
  }
  const Json json = here.run("plan-communication --json").json();
  EXPECT_EQ(json["single_node"].size(), 4U);
  ASSERT_EQ(json["cluster"].size(), 24U);
  for (const Json& cell : json["cluster"]) {
    EXPECT_NEAR(cell["computed"].get<double>(), cell["published"].get<double>(), 0.15) << cell;
  }
}

TEST_F(PlanCommand, PredictsForGivenTimes) {
  const Ran node = here.ok(
      "plan-communication node --gpus 4 --compute-ms 104.1 --fc-ms 6.5 --parallel-fc-ms 3.34 "
      "--conv-sync 0.05:0 --fc-sync 0.5:0.3 0.5:0.15 0.4:0:5 --json");
  EXPECT_NEAR(node.json()["speedup"].get<double>(), 3.6668, 1e-4);
  EXPECT_NEAR(node.json()["exposed_ms"].get<double>(), 2.6, 1e-9);
  const Json cluster =
      here.run(
              "plan-communication --json cluster --sub-batch 2048 --compute-ms 104.1 --fc-ms 6.5 "
              "--sync-ms 25.5 3.26 --under-ms 1.3")
          .json();
  EXPECT_EQ(cluster["gpus"], 96);
  EXPECT_NEAR(cluster["predictions"][0]["speedup"].get<double>(), 11.269, 1e-3);
  EXPECT_NEAR(cluster["predictions"][1]["speedup"].get<double>(), 50.636, 1e-3);
  EXPECT_THAT(here.run("plan-communication cluster --sub-batch 2048 --compute-ms 104.1 --fc-ms 6.5 "
                       "--sync-ms 3.26 --under-ms 1.3")
                  .out,
              HasSubstr("50.64"));
  const Json link = here.run("plan-communication link 1000:0.108 1e6:8.1 --json").json();
  EXPECT_NEAR(link["latency_us"].get<double>(), 100, 1e-6);
  EXPECT_NEAR(link["gbit"].get<double>(), 1, 1e-9);
}

TEST_F(PlanCommand, PredictsOurOwnStep) {
  const Json rows = here.ok(kRanks +
                            "--density 0.1 --ranks 1 4 --codec fp32 maxmin:4:512 "
                            "--link-gbit 0.1 --no-overlap --json")
                        .json()["predictions"];
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0]["step_ms"].get<double>(), 180);
  EXPECT_EQ(rows[1]["bytes"].get<double>(), 1.5 * 4 * 1'080'000);
  EXPECT_NEAR(rows[1]["step_ms"].get<double>(), 180 + 1.5 * 4 * 1'080'000 / 12.5e6 * 1e3, 1e-6);
  EXPECT_EQ(rows[3]["codec"], "maxmin:4:512");
  EXPECT_NEAR(rows[3]["bits_per_value"].get<double>(), 4.125, 1e-3);
  EXPECT_GT(rows[3]["speedup"].get<double>(), rows[1]["speedup"].get<double>());
  EXPECT_THAT(
      here.ok(kRanks + "--ranks 2 --bits-per-value 0.5 --link-gbit 1 --reduction all-to-all").out,
      HasSubstr("0.675"));  // MB: 10.8e6 / 16
}

TEST_F(PlanCommand, WrongUsageIsTwo) {
  const std::string parts = "--compute-ms 4 --fc-ms 2 ";
  for (const auto& [arguments, words] :
       Rows{{"bogus", "bogus"},
            {"node", "--compute-ms is required"},
            {"node --compute-ms 1 --fc-ms 2 --parallel-fc-ms 1", "exceeds --compute-ms"},
            {"node " + parts + "--parallel-fc-ms 1 --fc-sync 1", "SYNC:UNDER"},
            {"node " + parts + "--parallel-fc-ms 1 --fc-sync 1:2:1.5", "SYNC:UNDER"},
            {"cluster " + parts + "--sync-ms -1", "--sync-ms: -1 is not a number >= 0"},
            {"cluster " + parts + "--sync-ms nan", "nan is not a number >= 0"},
            {"cluster --compute-ms 0 --fc-ms 0 --sync-ms 1", "--compute-ms: 0 is not a number > 0"},
            {"cluster " + parts + "--sync-ms 1 --batch 100", "a sub-batch of 128"},
            {"link 5:1", "two or more sizes"},
            {"link 1:2 5:1", "did not take longer"},
            {"link 5", "BYTES:MS"}}) {
    here.fails("plan-communication " + arguments, 2, words);
  }
  for (const auto& [arguments, words] :
       Rows{{"--link-gbit 1", "--ranks"},
            {"--ranks 2", "--link-gbit"},
            {"--ranks 0 --link-gbit 1", "--ranks"},
            {"--ranks 2 --link-gbit 0", "--link-gbit"},
            {"--ranks 2 --link-gbit 1 --codec zip", "use one of fp32, bf16"},
            {"--ranks 2 --link-gbit 1 --codec maxmin:9", "bits = 9"},
            {"--ranks 2 --link-gbit 1 --codec sign --bits-per-value 3", "excludes"},
            {"--ranks 2 --link-gbit 1 --bits-per-value nan", "--bits-per-value"},
            {"--ranks 2 --link-gbit 1 --density nan", "--density"},
            {"--ranks 2 --link-gbit 1 --bucket-mb 1e-5 --density 1.5", "from 0 to 1"}}) {
    here.fails(kRanks + arguments, 2, words);
  }
  here.fails(
      "plan-communication ranks --ranks 2 --forward-ms 1 --backward-ms 1 "
      "--parameters 1e14 --link-gbit 1",
      2, "take larger ones");
}

}  // namespace
}  // namespace espalier::cli_plan_test
