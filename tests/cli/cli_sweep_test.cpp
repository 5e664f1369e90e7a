// espalier sweep with the real program: every combination is trained once, each run is an ordinary
// one, the optimum is marked, a second call continues, and bad input trains nothing.
#include <signal.h>

#include "tests/support/job.h"

namespace espalier::cli_sweep_test {
namespace {

namespace fs = std::filesystem;
using ::testing::StartsWith;

const std::string kShort = "sweep c.toml --out s --set train.steps=6 --set pruning.at_step=2 ";

std::vector<std::string> folders(const Workplace& here) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(here / "s")) {
    if (entry.is_directory()) {
      found.push_back(entry.path().filename().string());
    }
  }
  std::ranges::sort(found);
  return found;
}

using CliSweep = ProgramTest;

TEST_F(CliSweep, TrainsEachCombinationAndMarksTheOptimum) {
  const Ran ran = here.ok(kShort + "--over model.width=32 --over optimizer.lr=1e-6,1e-2,10 --json");
  EXPECT_THAT(folders(here), ElementsAre("width=32,lr=10", "width=32,lr=1e-2", "width=32,lr=1e-6"));
  const nlohmann::json sweep = ran.json();
  ASSERT_EQ(sweep["sweep"].size(), 3U);
  EXPECT_EQ(sweep["sweep"][0]["optimizer.lr"], "1e-6");
  EXPECT_TRUE(sweep["sweep"][1]["best"].get<bool>()) << sweep.dump(2);
  EXPECT_TRUE(sweep["warnings"].empty());
  EXPECT_EQ(nlohmann::json::parse(here.read("s/sweep.json")), sweep);
  EXPECT_TRUE(here.has("s/report.html"));
  // A run of the sweep is the run of its config; min_lr keeps its ratio to lr.
  here.ok("train 's/width=32,lr=1e-2/sweep.toml' --out alone --resume none");
  EXPECT_EQ(here.summary("alone")["final_val_loss"],
            here.summary("s/width=32,lr=1e-2")["final_val_loss"]);
  EXPECT_EQ(sweep["sweep"][1]["losses"][0], here.summary("alone")["final_val_loss"]);
  EXPECT_THAT(here.read("s/width=32,lr=1e-2/sweep.toml"), HasSubstr("min_lr = 0.000333333333"));
}

TEST_F(CliSweep, AnAutomaticRateHasARatio) {
  here.ok(kShort +
          "--set optimizer.lr=auto --set optimizer.min_lr=1e-3 --over optimizer.lr=auto,8e-3");
  EXPECT_THAT(here.read("s/lr=8e-3/sweep.toml"), HasSubstr("min_lr = 0.002"));
  EXPECT_THAT(here.read("s/lr=auto/sweep.toml"), HasSubstr("lr = \"auto\"\nmin_lr = 0.001"));
}

TEST_F(CliSweep, AnOptimumAtTheEdgeIsSaid) {
  EXPECT_THAT(here.ok(kShort + "--over optimizer.lr=1e-6,1e-5,1e-3").err,
              HasSubstr("optimizer.lr = 1e-3 is at the edge of the grid"));
}

TEST_F(CliSweep, SeedsAreRunsOfTheirOwn) {
  const Ran ran = here.ok(kShort + "--over optimizer.lr=1e-3 --seeds 2 --jobs 1 --json");
  EXPECT_THAT(folders(here), ElementsAre("lr=1e-3,seed=1", "lr=1e-3,seed=2"));
  const auto losses = ran.json()["sweep"][0]["losses"].get<std::vector<double>>();
  ASSERT_EQ(losses.size(), 2U);
  EXPECT_NE(losses[0], losses[1]);
}

TEST_F(CliSweep, ValuesOfTheSameFileNameAreRunsOfTheirOwn) {
  here.shell("cp text.txt d_1.txt; tac text.txt >'d 1.txt'; printf more >>'d 1.txt'");
  const std::string sweep =
      "sweep c.toml --out s --set train.steps=2 --set pruning.at_step=1 "
      "--over 'data.train=[\"d_1.txt\"],[\"d 1.txt\"]' --jobs 1 ";
  const Ran ran = here.ok(sweep + "--json");
  const std::vector<std::string> names = folders(here);
  EXPECT_THAT(names,
              ElementsAre(StartsWith("train=__d_1.txt__-"), StartsWith("train=__d_1.txt__-")));
  EXPECT_NE(ran.json()["sweep"][0]["losses"], ran.json()["sweep"][1]["losses"]);
  EXPECT_EQ(here.run(sweep + "--json").json(), ran.json());
  // In another order, and beside other values, a value has the same name.
  const Ran turned = here.ok(
      "sweep c.toml --out s --set train.steps=2 --set pruning.at_step=1 "
      "--over 'data.train=[\"d 1.txt\"],[\"text.txt\"],[\"d_1.txt\"]' --json");
  EXPECT_EQ(turned.json()["sweep"][0]["losses"], ran.json()["sweep"][1]["losses"]);
  EXPECT_EQ(turned.json()["sweep"][2]["losses"], ran.json()["sweep"][0]["losses"]);
  EXPECT_EQ(folders(here).size(), 3U);
}

TEST_F(CliSweep, AResultWithoutItsConfigIsNotTaken) {
  const std::string sweep = kShort + "--over optimizer.lr=1e-3 --json";
  here.shell("mkdir -p s/lr=1e-3");
  here.write("s/lr=1e-3/summary.json", R"({"finished": true, "final_val_loss": 0.125})");
  EXPECT_NE(here.ok(sweep).json()["sweep"][0]["losses"][0], 0.125);
}

TEST_F(CliSweep, DoesNotGoOnWithOtherData) {
  const std::string sweep = kShort + "--over optimizer.lr=1e-3 --json";
  const Ran first = here.ok(sweep);
  here.shell("cp text.txt text; printf x >>text.txt");
  const Ran other = here.run(sweep);
  expect_error(other, 1, "s/lr=1e-3 is of a run with other data: data.train had 12");
  EXPECT_THAT(other.err, HasSubstr("--out"));
  here.shell("mv text text.txt");
  EXPECT_EQ(here.run(sweep).json(), first.json());
}

TEST_F(CliSweep, ADataFileReplacedBetweenTwoRunsIsAnError) {
  // The second run starts after the first, with another file under the name.
  here.write("launch.sh",
             "if [ -e once ]; then cp text.txt t && printf x >>t && mv t text.txt; fi\n"
             "touch once\n\"$@\"");
  const Ran ran =
      here.ok(kShort + "--over optimizer.lr=1e-3,2e-3 --jobs 1 --launcher 'sh launch.sh' --json");
  EXPECT_EQ(ran.json()["sweep"][0]["failed"], 0);
  EXPECT_EQ(ran.json()["sweep"][1]["failed"], 1);
  EXPECT_THAT(ran.err, HasSubstr("s/lr=2e-3 is of a run with other data"));
}

TEST_F(CliSweep, ASignalSavesTheRunsOfAScript) {
  // The shell and `timeout`, which makes a process group, die of the signal at once.
  here.write("script.sh", "timeout 600 \"$@\"\nexit $?");
  Job job(here, fmt::format("{} sweep c.toml --out s --set train.steps=1000000 "
                            "--set train.checkpoint_every=0 --over optimizer.lr=1e-3,2e-3 "
                            "--jobs 2 --launcher 'sh script.sh sh script.sh'",
                            ESPALIER_PROGRAM));
  const auto trains = [&](const char* lr) {
    return !here.read(fmt::format("s/lr={}/metrics.jsonl", lr)).empty();
  };
  ASSERT_TRUE(wait_for([&] { return trains("1e-3") && trains("2e-3"); }, 60)) << job.errors();
  const std::vector<pid_t> runs = job.ranks();
  ASSERT_EQ(runs.size(), 2U);
  kill(job.pid(), SIGTERM);
  job.expect_end(60, 4);
  expect_gone(runs);
  for (const char* lr : {"1e-3", "2e-3"}) {
    EXPECT_FALSE(fs::is_empty(here / fmt::format("s/lr={}/checkpoints", lr))) << lr;
  }
}

TEST_F(CliSweep, ASecondOneInTheDirectoryIsRefused) {
  const std::string sweep =
      "sweep c.toml --out s --set train.steps=1000000 --over optimizer.lr=1e-3";
  Job job(here, fmt::format("{} {}", ESPALIER_PROGRAM, sweep));
  ASSERT_TRUE(wait_for([&] { return here.has("s/lr=1e-3/checkpoints"); }, 60));
  here.fails(sweep, 5, "in use by process");
  kill(job.pid(), SIGTERM);
  job.expect_end(60, 4);
}

TEST_F(CliSweep, GoesOnWhereItStopped) {
  const std::string sweep =
      "sweep c.toml --out s --set model.width=64 --set train.steps=60 "
      "--set train.eval_every=0 --over optimizer.lr=1e-3,2e-3 --json";
  {
    Job job(here, fmt::format("{} {} --jobs 1", ESPALIER_PROGRAM, sweep));
    ASSERT_TRUE(wait_for([&] { return here.has("s/lr=2e-3/checkpoints"); }, 60));
    kill(job.pid(), SIGTERM);
    job.expect_end(60, 4);
  }
  const auto finished = fs::last_write_time(here / "s/lr=1e-3/summary.json");
  const Ran ran = here.ok(sweep + " --jobs 2");
  EXPECT_EQ(fs::last_write_time(here / "s/lr=1e-3/summary.json"), finished) << "not repeated";
  here.ok("train 's/lr=2e-3/sweep.toml' --out alone --resume none");
  EXPECT_EQ(here.summary("alone")["final_val_loss"], ran.json()["sweep"][1]["losses"][0]);
}

TEST_F(CliSweep, FurtherSignalsEndARunThatHangs) {
  Job job(here, ESPALIER_PROGRAM
          " sweep c.toml --out s --set train.steps=1000000 --over optimizer.lr=1e-3");
  ASSERT_TRUE(wait_for([&] { return here.has("s/lr=1e-3/checkpoints"); }, 60));
  const std::vector<pid_t> runs = job.ranks();
  ASSERT_EQ(runs.size(), 1U);
  kill(runs[0], SIGSTOP);
  const auto ended = [&] {
    kill(job.pid(), SIGTERM);
    return job.wait(0.2).has_value();
  };
  ASSERT_TRUE(wait_for(ended, 8)) << job.errors();
  job.expect_end(0, 4);
  expect_gone(runs);
}

TEST_F(CliSweep, AFailedRunIsNoOptimum) {
  const Ran ran = here.ok(kShort + "--over optimizer.lr=1e-3,1e38 --json");
  EXPECT_EQ(ran.json()["sweep"][1]["failed"], 1);
  EXPECT_FALSE(ran.json()["sweep"][1]["best"].get<bool>());
  EXPECT_THAT(ran.err, HasSubstr("log.txt"));
  EXPECT_THAT(here.read("s/lr=1e38/log.txt"), HasSubstr("diverged"));
}

TEST_F(CliSweep, ARunThatCannotStartIsAFailedOne) {
  here.shell("mkdir s && ln -s nowhere s/lr=2e-3");
  const Ran ran = here.ok(kShort + "--over optimizer.lr=1e-3,2e-3,3e-3 --json");
  EXPECT_EQ(ran.json()["sweep"][0]["failed"], 0);
  EXPECT_EQ(ran.json()["sweep"][1]["failed"], 1);
  EXPECT_EQ(ran.json()["sweep"][2]["failed"], 0);
  EXPECT_THAT(ran.err, HasSubstr("lr=2e-3: failed, s/lr=2e-3 is a link to nowhere"));
  const Ran nothing = here.run("sweep c.toml --out t --over optimizer.lr=1e-3 --launcher nothing");
  expect_code(nothing, 1);
  EXPECT_THAT(nothing.err, HasSubstr("lr=1e-3: failed, the command was not found"));
  // A launcher that ends well without a run; quotes are those of a shell.
  const Ran none = here.run("sweep c.toml --out u --over optimizer.lr=1e-3 --launcher true");
  expect_code(none, 1);
  EXPECT_THAT(none.err, HasSubstr("lr=1e-3: failed, u/lr=1e-3 holds no finished run"));
  EXPECT_THAT(none.out, HasSubstr("optimizer.lr")) << "the table";
  here.ok(
      "sweep c.toml --out v --set train.steps=6 --set pruning.at_step=2 --over "
      "optimizer.lr=1e-3 --launcher "
      "\"env 'A=b c' sh -c '\\\"\\$0\\\" \\\"\\$@\\\"; echo \\$A > v/words'\"");
  EXPECT_EQ(here.read("v/words"), "b c\n");
}

TEST_F(CliSweep, BadInputTrainsNothing) {
  for (const auto& [options, code, words] : std::vector<std::tuple<std::string, int, std::string>>{
           {"--over optimizer.lr", 2, "no values"},
           {"--over optimizer.lr=1e-3,", 2, "empty value"},
           {"--over optimizer.lr=1e-3,1e-3", 2, "twice"},
           {"--over optimizer.lr=1e-3 --over optimizer.lr=2e-3", 2, "given twice"},
           {"--over train.seed=1,2 --seeds 2", 2, "--seeds"},
           {"--over run.out=x,y", 2, "--out"},
           {"--over train.steps=1 --launcher 'a | b'", 2, "quote"},
           {"--over train.steps=1 --launcher \"'\"", 2, "quote"},
           {"--over train.steps=1 --set train.seed=9007199254740990 --seeds 3", 1, "train.seed"},
           {"--over optimizer.rate=1e-3", 1, "optimizer.rate"},
           {"--over model.width=32,30 --set model.heads=4", 1, "not divisible"},
           {"--over optimizer.lr=fast", 1, "optimizer.lr"}}) {
    here.fails("sweep c.toml --out s " + options, code, words);
    EXPECT_FALSE(here.has("s")) << options;
  }
  here.ok(kShort + "--over optimizer.lr=1e-3");
  here.fails("sweep c.toml --out s --over optimizer.lr=1e-3", 1, "another config");
}

TEST_F(CliSweep, APipeInThePlaceOfALogIsNotWaitedFor) {
  here.shell("mkdir -p s/lr=1; mkfifo s/lr=1/log.txt");
  EXPECT_THAT(here.run(kShort + "--over optimizer.lr=1,2e-3").err,
              HasSubstr("lr=1: failed, s/lr=1/log.txt is not an ordinary file"));
  EXPECT_TRUE(here.has("s/lr=2e-3/summary.json"));
}

}  // namespace
}  // namespace espalier::cli_sweep_test
