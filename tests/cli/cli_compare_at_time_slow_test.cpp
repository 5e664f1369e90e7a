// espalier compare-at-time with the real program: what it trains, prints and writes, that a second
// call trains nothing again, and bad input. The steps and rates: tests/planner/equal_time_test.cpp.
#include <signal.h>

#include <cmath>

#include "tests/support/job.h"

namespace espalier::cli_compare_at_time_slow_test {
namespace {

namespace fs = std::filesystem;

const std::string kTiny =
    "compare-at-time c.toml --out o --set model.layers=1 --set model.context=8 "
    "--set train.global_batch=2 --set train.eval_every=0 --set train.eval_batches=1 "
    "--set train.checkpoint_every=-1 --set run.trace=false ";

std::vector<std::string> runs_in(const Workplace& here) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(here / "o")) {
    if (entry.is_directory() && entry.path().filename() != "trial") {
      found.push_back(entry.path().filename().string());
    }
  }
  std::ranges::sort(found);
  return found;
}

/// {name: network} of the output of --json.
std::map<std::string, nlohmann::json> networks_of(const nlohmann::json& comparison) {
  std::map<std::string, nlohmann::json> found;
  for (const auto& network : comparison["networks"]) {
    found[network["name"]] = network;
  }
  return found;
}

using CliCompareAtTime = ProgramTest;

TEST_F(CliCompareAtTime, TrainsAllNetworksForTheSameTimeAndAnswers) {
  const std::string command = kTiny + "--seconds 0.05 --seeds 2 ";
  // A dry run times the steps only.
  const auto planned = networks_of(here.ok(command + "--dry-run --json").json());
  EXPECT_TRUE(runs_in(here).empty());
  EXPECT_FALSE(here.has("o/comparison.json"));
  const nlohmann::json found = here.ok(command + "--json").json();
  const auto networks = networks_of(found);
  ASSERT_EQ(networks.size(), 7U);
  for (const auto& [name, network] : networks) {
    SCOPED_TRACE(name);
    EXPECT_EQ(network["steps"], planned.at(name)["steps"]);
    EXPECT_LE(network["planned_seconds"].get<double>(), 0.0501);
    EXPECT_GT(network["planned_seconds"].get<double>(), 0.04);
    ASSERT_EQ(network["losses"].size(), 2U);
    // Bracketed: neither the least nor the largest rate is the best, unless the walk ended.
    const auto rates = network["rates"].get<std::map<std::string, nlohmann::json>>();
    ASSERT_GE(rates.size(), 3U);
    const std::string best = fmt::format("{}", network["lr"].get<double>());
    for (const auto& [lr, loss] : rates) {
      EXPECT_TRUE(loss.is_null() || loss >= rates.at(best)) << lr;
    }
    // A run is the run of its config, with schedules of its steps.
    const std::string run = fmt::format("o/{},lr={},seed=1", name, best);
    EXPECT_EQ(here.summary(run)["steps"], network["steps"]);
    EXPECT_EQ(here.summary(run)["final_val_loss"], network["losses"][0]);
    EXPECT_TRUE(here.has(fmt::format("o/{},lr={},seed=2/summary.json", name, best)));
    EXPECT_EQ(network["model_state_bytes"], here.summary(run)["model_state_bytes"]);
  }
  EXPECT_EQ(networks.at("dense-0.75-width")["shape"], nlohmann::json({"width=24"}));
  EXPECT_LT(networks.at("sparse")["model_state_bytes"], networks.at("dense")["model_state_bytes"]);
  EXPECT_FALSE(found["answer"].empty());
  // The same command trains nothing again.
  const std::vector<std::string> before = runs_in(here);
  const auto time = fs::last_write_time(here / "o" / before.front() / "summary.json");
  const Ran again = here.ok(command);
  EXPECT_EQ(runs_in(here), before);
  EXPECT_EQ(fs::last_write_time(here / "o" / before.front() / "summary.json"), time);
  EXPECT_THAT(again.out, HasSubstr(found["answer"][0].get<std::string>()));
  EXPECT_THAT(again.out, HasSubstr("minus smaller dense"));
  EXPECT_THAT(here.read("o/report.html"), HasSubstr(found["answer"][0].get<std::string>()));
  here.fails(command + "--set train.dtype=bf16", 1, "of another config");
  here.fails(kTiny + "--seconds 1e-9 --seeds 2", 1, "less than one step; give more --seconds");
}

TEST_F(CliCompareAtTime, GoesOnAfterASignal) {
  const std::string command = kTiny + "--seconds 0.3 --seeds 1 ";
  {
    Job job(here, fmt::format("{} {}", ESPALIER_PROGRAM, command));
    ASSERT_TRUE(wait_for([&] { return here.has("o/trial") && !runs_in(here).empty(); }, 100));
    kill(job.pid(), SIGTERM);
    job.expect_end(60, 4);
  }
  EXPECT_FALSE(here.has("o/comparison.json"));
  here.ok(command);
  EXPECT_TRUE(here.has("o/comparison.json"));
}

TEST_F(CliCompareAtTime, TrainedWeightsHaveOneWidth) {
  here.ok("train c.toml");
  const std::string command =
      "compare-at-time c.toml --out o --seconds 0.1 --seeds 1 --set pruning.at_step=0 "
      "--set train.eval_batches=1 --json --init ";
  here.fails(command + kLast, 1, "is pruned, and dense networks start from the file");
  here.ok("train c.toml --out d --set pruning.method=none");
  const Ran ran = here.run(command + "d/checkpoints/step-000020.h5");
  expect_code(ran, 0);
  EXPECT_EQ(networks_of(ran.json()).size(), 3U);
  EXPECT_THAT(ran.err,
              HasSubstr("left out: dense-0.375-width: the weights to start from (--init)"));
}

TEST_F(CliCompareAtTime, ALauncherStartsRanks) {
  const Ran ran = here.ok(kTiny + "--seconds 0.05 --seeds 1 --json --launcher '" +
                          ESPALIER_SOURCE_DIR "/scripts/mpirun.sh 2'");
  EXPECT_EQ(networks_of(ran.json()).size(), 7U);
}

}  // namespace
}  // namespace espalier::cli_compare_at_time_slow_test
