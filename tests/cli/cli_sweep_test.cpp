// espalier sweep with the real program: every combination is trained once, each run is an ordinary
// one, the optimum is marked, a second call continues, and bad input trains nothing.
#include <gmock/gmock.h>
#include <signal.h>

#include "tests/support/job.h"

namespace espalier::cli_sweep_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
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

TEST(CliSweep, TrainsEachCombinationAndMarksTheOptimum) {
  const Workplace here;
  const Ran ran =
      here.run(kShort + "--over model.width=32 --over optimizer.lr=1e-6,1e-2,10 --json");
  expect_code(ran, 0);
  EXPECT_THAT(folders(here), ElementsAre("width=32,lr=10", "width=32,lr=1e-2", "width=32,lr=1e-6"));
  const nlohmann::json sweep = ran.json();
  ASSERT_EQ(sweep["sweep"].size(), 3U);
  EXPECT_EQ(sweep["sweep"][0]["optimizer.lr"], "1e-6");
  EXPECT_TRUE(sweep["sweep"][1]["best"].get<bool>()) << sweep.dump(2);
  EXPECT_TRUE(sweep["warnings"].empty());
  EXPECT_EQ(nlohmann::json::parse(here.read("s/sweep.json")), sweep);
  EXPECT_TRUE(fs::exists(here / "s/report.html"));
  // A run of the sweep is the run of its config; min_lr keeps its ratio to lr.
  expect_code(here.run("train 's/width=32,lr=1e-2/sweep.toml' --out alone --resume none"), 0);
  EXPECT_EQ(here.summary("alone")["final_val_loss"],
            here.summary("s/width=32,lr=1e-2")["final_val_loss"]);
  EXPECT_EQ(sweep["sweep"][1]["losses"][0], here.summary("alone")["final_val_loss"]);
  EXPECT_THAT(here.read("s/width=32,lr=1e-2/sweep.toml"), HasSubstr("min_lr = 0.000333333333"));
}

TEST(CliSweep, AnOptimumAtTheEdgeIsSaid) {
  const Workplace here;
  const Ran ran = here.run(kShort + "--over optimizer.lr=1e-6,1e-5,1e-3");
  expect_code(ran, 0);
  EXPECT_THAT(ran.err, HasSubstr("optimizer.lr = 1e-3 is at the edge of the grid"));
}

TEST(CliSweep, SeedsAreRunsOfTheirOwn) {
  const Workplace here;
  const Ran ran = here.run(kShort + "--over optimizer.lr=1e-3 --seeds 2 --jobs 1 --json");
  expect_code(ran, 0);
  EXPECT_THAT(folders(here), ElementsAre("lr=1e-3,seed=1", "lr=1e-3,seed=2"));
  const auto losses = ran.json()["sweep"][0]["losses"].get<std::vector<double>>();
  ASSERT_EQ(losses.size(), 2U);
  EXPECT_NE(losses[0], losses[1]);
}

TEST(CliSweep, ValuesOfTheSameFileNameAreRunsOfTheirOwn) {
  const Workplace here;
  here.shell("cp text.txt d_1.txt; tac text.txt >'d 1.txt'; printf more >>'d 1.txt'");
  const std::string sweep =
      "sweep c.toml --out s --set train.steps=2 --set pruning.at_step=1 "
      "--over 'data.train=[\"d_1.txt\"],[\"d 1.txt\"]' --jobs 1 ";
  const Ran ran = here.run(sweep + "--json");
  expect_code(ran, 0);
  const std::vector<std::string> names = folders(here);
  EXPECT_THAT(names,
              ElementsAre(StartsWith("train=__d_1.txt__-"), StartsWith("train=__d_1.txt__-")));
  EXPECT_NE(ran.json()["sweep"][0]["losses"], ran.json()["sweep"][1]["losses"]);
  EXPECT_EQ(here.run(sweep + "--json").json(), ran.json());
  // In another order, and beside other values, a value has the same name.
  const Ran turned = here.run(
      "sweep c.toml --out s --set train.steps=2 --set pruning.at_step=1 "
      "--over 'data.train=[\"d 1.txt\"],[\"text.txt\"],[\"d_1.txt\"]' --json");
  expect_code(turned, 0);
  EXPECT_EQ(turned.json()["sweep"][0]["losses"], ran.json()["sweep"][1]["losses"]);
  EXPECT_EQ(turned.json()["sweep"][2]["losses"], ran.json()["sweep"][0]["losses"]);
  EXPECT_EQ(folders(here).size(), 3U);
}

TEST(CliSweep, AResultWithoutItsConfigIsNotTaken) {
  const Workplace here;
  const std::string sweep = kShort + "--over optimizer.lr=1e-3 --json";
  here.shell("mkdir -p s/lr=1e-3");
  here.write("s/lr=1e-3/summary.json", R"({"finished": true, "final_val_loss": 0.125})");
  const Ran ran = here.run(sweep);
  expect_code(ran, 0);
  EXPECT_NE(ran.json()["sweep"][0]["losses"][0], 0.125);
}

TEST(CliSweep, DoesNotGoOnWithOtherData) {
  const Workplace here;
  const std::string sweep = kShort + "--over optimizer.lr=1e-3 --json";
  const Ran first = here.run(sweep);
  expect_code(first, 0);
  here.shell("cp text.txt text; printf x >>text.txt");
  const Ran other = here.run(sweep);
  expect_error(other, 1, "s/lr=1e-3 is of a run with other data: data.train had 12");
  EXPECT_THAT(other.err, HasSubstr("--out"));
  here.shell("mv text text.txt");
  EXPECT_EQ(here.run(sweep).json(), first.json());
}

TEST(CliSweep, ADataFileReplacedBetweenTwoRunsIsAnError) {
  const Workplace here;
  // The second run starts after the first, with another file under the name.
  here.write("launch.sh",
             "if [ -e once ]; then cp text.txt t && printf x >>t && mv t text.txt; fi\n"
             "touch once\n\"$@\"");
  const Ran ran =
      here.run(kShort + "--over optimizer.lr=1e-3,2e-3 --jobs 1 --launcher 'sh launch.sh' --json");
  expect_code(ran, 0);
  EXPECT_EQ(ran.json()["sweep"][0]["failed"], 0);
  EXPECT_EQ(ran.json()["sweep"][1]["failed"], 1);
  EXPECT_THAT(ran.err, HasSubstr("s/lr=2e-3 is of a run with other data"));
}

TEST(CliSweep, ASignalSavesTheRunsOfAScript) {
  const Workplace here;
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
  const std::optional<int> code = job.wait(60);
  ASSERT_TRUE(code.has_value()) << "still running\n" << job.errors();
  EXPECT_EQ(*code, 4) << job.errors();
  expect_gone(runs);
  for (const char* lr : {"1e-3", "2e-3"}) {
    EXPECT_FALSE(fs::is_empty(here / fmt::format("s/lr={}/checkpoints", lr))) << lr;
  }
}

TEST(CliSweep, ASecondOneInTheDirectoryIsRefused) {
  const Workplace here;
  const std::string sweep =
      "sweep c.toml --out s --set train.steps=1000000 --over optimizer.lr=1e-3";
  Job job(here, fmt::format("{} {}", ESPALIER_PROGRAM, sweep));
  ASSERT_TRUE(wait_for([&] { return fs::exists(here / "s/lr=1e-3/checkpoints"); }, 60));
  expect_error(here.run(sweep), 5, "in use by process");
  kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.wait(60), 4) << job.errors();
}

TEST(CliSweep, GoesOnWhereItStopped) {
  const Workplace here;
  const std::string sweep =
      "sweep c.toml --out s --set model.width=64 --set train.steps=60 "
      "--set train.eval_every=0 --over optimizer.lr=1e-3,2e-3 --json";
  {
    Job job(here, fmt::format("{} {} --jobs 1", ESPALIER_PROGRAM, sweep));
    ASSERT_TRUE(wait_for([&] { return fs::exists(here / "s/lr=2e-3/checkpoints"); }, 60));
    kill(job.pid(), SIGTERM);
    EXPECT_EQ(job.wait(60), 4) << job.errors();
  }
  const auto finished = fs::last_write_time(here / "s/lr=1e-3/summary.json");
  const Ran ran = here.run(sweep + " --jobs 2");
  expect_code(ran, 0);
  EXPECT_EQ(fs::last_write_time(here / "s/lr=1e-3/summary.json"), finished) << "not repeated";
  expect_code(here.run("train 's/lr=2e-3/sweep.toml' --out alone --resume none"), 0);
  EXPECT_EQ(here.summary("alone")["final_val_loss"], ran.json()["sweep"][1]["losses"][0]);
}

TEST(CliSweep, FurtherSignalsEndARunThatHangs) {
  const Workplace here;
  Job job(here, ESPALIER_PROGRAM
          " sweep c.toml --out s --set train.steps=1000000 --over optimizer.lr=1e-3");
  ASSERT_TRUE(wait_for([&] { return fs::exists(here / "s/lr=1e-3/checkpoints"); }, 60));
  const std::vector<pid_t> runs = job.ranks();
  ASSERT_EQ(runs.size(), 1U);
  kill(runs[0], SIGSTOP);
  const auto ended = [&] {
    kill(job.pid(), SIGTERM);
    return job.wait(0.2).has_value();
  };
  ASSERT_TRUE(wait_for(ended, 8)) << job.errors();
  EXPECT_EQ(job.wait(0), 4) << job.errors();
  expect_gone(runs);
}

TEST(CliSweep, AFailedRunIsNoOptimum) {
  const Workplace here;
  const Ran ran = here.run(kShort + "--over optimizer.lr=1e-3,1e38 --json");
  expect_code(ran, 0);
  EXPECT_EQ(ran.json()["sweep"][1]["failed"], 1);
  EXPECT_FALSE(ran.json()["sweep"][1]["best"].get<bool>());
  EXPECT_THAT(ran.err, HasSubstr("log.txt"));
  EXPECT_THAT(here.read("s/lr=1e38/log.txt"), HasSubstr("diverged"));
}

TEST(CliSweep, ARunThatCannotStartIsAFailedOne) {
  const Workplace here;
  here.shell("mkdir s && ln -s nowhere s/lr=2e-3");
  const Ran ran = here.run(kShort + "--over optimizer.lr=1e-3,2e-3,3e-3 --json");
  expect_code(ran, 0);
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
  expect_code(here.run("sweep c.toml --out v --set train.steps=6 --set pruning.at_step=2 --over "
                       "optimizer.lr=1e-3 --launcher "
                       "\"env 'A=b c' sh -c '\\\"\\$0\\\" \\\"\\$@\\\"; echo \\$A > v/words'\""),
              0);
  EXPECT_EQ(here.read("v/words"), "b c\n");
}

TEST(CliSweep, BadInputTrainsNothing) {
  const Workplace here;
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
    expect_error(here.run("sweep c.toml --out s " + options), code, words);
    EXPECT_FALSE(fs::exists(here / "s")) << options;
  }
  expect_code(here.run(kShort + "--over optimizer.lr=1e-3"), 0);
  expect_error(here.run("sweep c.toml --out s --over optimizer.lr=1e-3"), 1, "another config");
}

TEST(CliSweep, APipeInThePlaceOfALogIsNotWaitedFor) {
  const Workplace here;
  here.shell("mkdir -p s/lr=1; mkfifo s/lr=1/log.txt");
  const Ran ran = here.run(kShort + "--over optimizer.lr=1,2e-3");
  EXPECT_NE(ran.err.find("lr=1: failed, s/lr=1/log.txt is not an ordinary file"), std::string::npos)
      << ran.err;
  EXPECT_TRUE(std::filesystem::exists(here / "s/lr=2e-3/summary.json"));
}

}  // namespace
}  // namespace espalier::cli_sweep_test
