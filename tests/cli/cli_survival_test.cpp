// Runs that go on, or end with an error and all of their data, where something around them breaks:
// consoles, checkpoints, links, pipes, and settings that no machine can serve.
#include <csignal>
#include <sstream>

#include "tests/support/program.h"

namespace espalier::cli_survival_test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> checkpoints(const Workplace& here, const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(here / folder)) {
    if (entry.is_regular_file()) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::ranges::sort(names);
  return names;
}

using CliSurvival = ProgramTest;

TEST_F(CliSurvival, ABranchKeepsItsNewestCheckpointAndSetsTheOthersAside) {
  here.ok("train c.toml");
  const Ran branch = here.ok(
      "train c.toml --resume run/checkpoints/step-000005.h5 --steps 7 "
      "--set train.keep_checkpoints=2");
  EXPECT_THAT(branch.err, HasSubstr("set aside in run/checkpoints/set-aside-1"));
  EXPECT_EQ(checkpoints(here, "run/checkpoints"),
            (std::vector<std::string>{"step-000005.h5", "step-000007.h5"}));
  EXPECT_EQ(checkpoints(here, "run/checkpoints/set-aside-1"),
            (std::vector<std::string>{"step-000010.h5", "step-000015.h5", "step-000020.h5"}));
  EXPECT_FALSE(here.summary("run")["finished"].get<bool>());
  const Ran on = here.ok("train c.toml --resume auto");
  EXPECT_THAT(on.err, HasSubstr("step-000007.h5 at step 7"));
  EXPECT_THAT(on.err, Not(HasSubstr("set aside")));
  // Its steps are no longer in metrics.jsonl: the branch that was given up goes on elsewhere.
  const std::string aside = "run/checkpoints/set-aside-1/step-000015.h5";
  const std::string metrics = here.read("run/metrics.jsonl");
  here.fails("train c.toml --resume " + aside, 1, "name another directory with --out");
  EXPECT_TRUE(here.read("run/metrics.jsonl") == metrics);
  here.ok("train c.toml --out other --resume " + aside);
  EXPECT_EQ(here.curve("other", "loss").size(), 5U);
}

TEST_F(CliSurvival, ResumeTakesTheNewestIntactCheckpoint) {
  here.ok("train c.toml");
  const std::string whole = here.read("run/metrics.jsonl");
  const std::string good = here.read(kLast);
  fs::resize_file(here / kLast, 1000);
  std::string flipped = here.read("run/checkpoints/step-000015.h5");
  flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 1);
  here.write("run/checkpoints/step-000015.h5", flipped);
  const Ran ran = here.ok("train c.toml --resume auto");
  EXPECT_THAT(ran.err, HasSubstr("skipped damaged checkpoint: run/checkpoints/step-000020.h5"));
  EXPECT_THAT(ran.err, HasSubstr("skipped damaged checkpoint: run/checkpoints/step-000015.h5"));
  EXPECT_THAT(ran.err, HasSubstr("resumed from run/checkpoints/step-000010.h5"));
  EXPECT_EQ(here.read(kLast), good) << "the bits of an undisturbed run";
  EXPECT_EQ(checkpoints(here, "run/checkpoints/set-aside-1").size(), 2U);
  for (const std::string& name : checkpoints(here, "run/checkpoints")) {
    here.write("run/checkpoints/" + name, "no checkpoint");
  }
  here.fails("train c.toml --resume auto", 1, "no checkpoint of run is intact");
  EXPECT_EQ(here.curve("run", "loss").size(), 20U) << "nothing was removed";
}

TEST_F(CliSurvival, ACheckpointOfAnotherRunDoesNotReplaceARun) {
  here.ok("train c.toml --steps 5");
  here.ok("train c.toml --steps 5 --out other");
  here.fails("train c.toml --out other --resume run/checkpoints/step-000005.h5", 1,
             "not one of its checkpoints");
  here.ok("train c.toml --out third --resume run/checkpoints/step-000005.h5");
}

TEST_F(CliSurvival, AResumedRunIsNotFinishedUntilItsEnd) {
  here.ok("train c.toml");
  EXPECT_TRUE(here.summary("run")["finished"].get<bool>());
  // Killed at a step: SIGKILL leaves no time to write anything.
  expect_code(
      here.shell(ESPALIER_PROGRAM " train c.toml --resume auto --set train.steps=100000 & pid=$!; "
                                  "until [ -e run/checkpoints/step-000025.h5 ]; do sleep 0.02; "
                                  "done; kill -9 $pid; wait $pid"),
      137);
  EXPECT_FALSE(here.summary("run")["finished"].get<bool>());
}

/// No thread that computes is interrupted by a handler (stop_signals.h): only the thread that waits
/// for the signals takes them.
TEST_F(CliSurvival, StopSignalsAreBlockedInEveryThread) {
  const Ran ran =
      here.shell(ESPALIER_PROGRAM
                 " train c.toml --resume none --set run.threads=2 --set train.steps=100000 "
                 "--set train.checkpoint_every=5 & pid=$!; "
                 "until [ -e run/checkpoints/step-000005.h5 ]; do sleep 0.02; done; "
                 "grep -h SigBlk /proc/$pid/task/*/status; kill -TERM $pid; wait $pid");
  expect_code(ran, 4);
  std::istringstream lines(ran.out);
  int computing = 0, waiting = 0;
  for (std::string name, mask; lines >> name >> mask;) {
    const uint64_t open = ~std::stoull(mask, nullptr, 16);
    uint64_t taken = 0;
    for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGHUP}) {
      taken |= open & uint64_t{1} << (signal - 1);
    }
    ++(taken == 0 ? computing : waiting);
  }
  EXPECT_EQ(waiting, 1);
  EXPECT_GE(computing, 2);
}

TEST_F(CliSurvival, AFailedDiskIsRetryableAndLosesNothing) {
  here.ok("train c.toml");
  const std::string undisturbed = here.read(kLast);
  const std::string disk =
      fs::canonical("/proc/self/exe").parent_path() / "libespalier_failing_disk.so";
  for (const auto& [fault, cause] : Rows{{"fsync 2 5", "Input/output error"},
                                         {"fsync 12 5", "Input/output error"},
                                         {"fsync 16 28", "No space left on device"},
                                         {"rename 5 5", "Input/output error"},
                                         {"pwrite 40 28", "No space left on device"},
                                         {"pwrite 300 5", "Input/output error"}}) {
    SCOPED_TRACE(fault);
    here.shell("rm -rf run");
    expect_error(
        here.shell(fmt::format("FAILING_DISK='{}' LD_PRELOAD='{}' {} train c.toml --resume auto",
                               fault, disk, ESPALIER_PROGRAM)),
        5, cause);
    if (here.has("run/checkpoints")) {
      for (const std::string& name : checkpoints(here, "run/checkpoints")) {
        here.ok("inspect run/checkpoints/" + name);
      }
    }
    here.ok("train c.toml --resume auto");
    EXPECT_EQ(here.read(kLast), undisturbed);
    EXPECT_EQ(here.curve("run", "loss").size(), 20U);
  }
}

TEST_F(CliSurvival, ABrokenConsoleEndsNoRun) {
  here.ok("train c.toml");
  const std::string undisturbed = here.read(kLast);
  for (const std::string console :
       {"2>/dev/full", "<&- >&- 2>&-", "2>&1 | head -c 20", "2>&1 | true"}) {
    here.shell("rm -rf run");
    here.shell(ESPALIER_PROGRAM " train c.toml " + console);
    EXPECT_EQ(here.read(kLast), undisturbed) << console;
    EXPECT_TRUE(here.summary("run")["finished"].get<bool>()) << console;
    EXPECT_EQ(here.curve("run", "loss").size(), 20U) << console;
  }
}

TEST_F(CliSurvival, AClosedTerminalEndsARunWithACheckpoint) {
  const std::string start = ESPALIER_PROGRAM
      " train c.toml --set train.steps=100000 --set train.checkpoint_every=0 & pid=$!; "
      "until [ -s run/metrics.jsonl ]; do sleep 0.02; done; kill -HUP $pid; ";
  expect_code(here.shell(start + "wait $pid"), 4);
  EXPECT_EQ(checkpoints(here, "run/checkpoints").size(), 1U);
  EXPECT_FALSE(here.summary("run")["finished"].get<bool>());
  // Under nohup it goes on.
  here.shell("rm -rf run");
  here.shell_ok("trap '' HUP; " + start + "sleep 0.3; kill -0 $pid && kill -9 $pid");
}

TEST_F(CliSurvival, ALockDoesNotOverwriteOtherFiles) {
  for (const std::string link :
       {"ln -s ../precious r/.lock", "ln precious r/.lock", "cp precious r/.lock"}) {
    here.shell("rm -rf r && mkdir r && echo 'years of work' >precious && " + link);
    here.fails("train c.toml --out r", 1, "r/.lock");
    EXPECT_EQ(here.read("precious"), "years of work\n") << link;
    EXPECT_EQ(here.read("r/.lock"), "years of work\n") << link;
  }
}

TEST_F(CliSurvival, TheRunDirectoryIsTakenLiterally) {
  here.fails("train c.toml --out ''", 2, "--out: the value is empty");
  here.fails("train c.toml --set run.out=", 1, "run.out is empty");
  EXPECT_FALSE(here.has("run"));
  here.ok(R"(train c.toml --steps 1 --out 'a\tb "c"')");
  EXPECT_TRUE(fs::exists(here / R"(a\tb "c")" / "metrics.jsonl"));
}

TEST_F(CliSurvival, LostLinesOfMetricsAreSaid) {
  here.ok("train c.toml --steps 10");
  const std::string whole = here.read("run/metrics.jsonl");
  const std::string says = "run/metrics.jsonl ends at step";
  size_t sixth = 0;  // the line
  for (int line = 0; line < 6; ++line) {
    sixth = whole.find('\n', sixth) + 1;
  }
  here.write("run/metrics.jsonl", whole.substr(0, sixth));
  EXPECT_THAT(here.ok("train c.toml --resume auto --steps 12").err,
              HasSubstr(says + " 6, and the run goes on after step 10"));
  EXPECT_THAT(here.run("train c.toml --resume auto --steps 14").err, Not(HasSubstr(says)));
  fs::remove(here / "run/metrics.jsonl");
  EXPECT_THAT(here.run("train c.toml --resume auto --steps 16").err, HasSubstr(says + " 0"));
  const std::string last = "run/checkpoints/step-000016.h5";
  const Ran branch =
      here.ok("train c.toml --steps 18 --out other --init text.txt --resume " + last);
  EXPECT_THAT(branch.err, Not(HasSubstr(says))) << "another directory never had them";
  EXPECT_THAT(branch.err, HasSubstr("--init text.txt is not read: the run goes on from " + last));
}

TEST_F(CliSurvival, WeightsOfAnotherModelAreNotReadInPart) {
  here.ok("train c.toml --steps 2");
  const std::string checkpoint = "run/checkpoints/step-000002.h5";
  here.ok("export " + checkpoint + " -o plain.h5");
  const std::string fewer = " --config c.toml --set model.layers=1";
  for (const std::string command : {"import plain.h5 -o new.h5", "eval plain.h5"}) {
    here.fails(command + fewer, 1, "has a dataset \"blocks.1.");
  }
  here.fails("train c.toml --out other --init plain.h5 --set model.layers=1", 1,
             "has a dataset \"blocks.1.");
  here.fails("eval " + checkpoint + " --set model.heads=1", 1, "model.heads is 2");
  here.ok("eval " + checkpoint);
}

TEST_F(CliSurvival, IntegersOfOptionsHaveLimits) {
  here.ok("train c.toml --steps 1");
  const std::string prune = "prune run/checkpoints/step-000001.h5 -o x.h5 --method ";
  for (const std::string option :
       {"nm:4294967298", "nm:m=4294967300", "block:4294967304 --sparsity 0.5"}) {
    here.fails(prune + option, 1, "is out of range");
  }
}

TEST_F(CliSurvival, AReportLeavesBrokenPicturesOut) {
  here.ok("train c.toml --steps 3");
  here.write("run/pipeline-measured.svg", "\xff");
  here.write("run/pipeline-predicted.svg", "x");
  here.ok("report run");
  EXPECT_THAT(here.read("run/report.html"), HasSubstr("pipeline-measured.svg is no SVG picture"));
}

TEST_F(CliSurvival, LongNamesAreNoBug) {
  const std::string name(5000, 'a');
  for (const std::string command : {"train c.toml --resume ", "train c.toml --init ", "inspect ",
                                    "train c.toml --out ", "report ", "eval ", "train "}) {
    here.fails(command + name, 1, "aaa");
  }
}

/// Kernels divide their work by the number of threads that they request.
TEST_F(CliSurvival, FewerThreadsThanRequestedChangeNothing) {
  const std::string train = "train c.toml --steps 8 --set run.threads=2 --out ";
  const auto losses = [&](const std::string& variable) {
    here.shell_ok(fmt::format("{} {} {} --resume none", variable, ESPALIER_PROGRAM, train + "r"));
    return here.curve("r", "loss");
  };
  const std::vector<double> want = losses("");
  for (const char* variable :
       {"OMP_THREAD_LIMIT=1", "OMP_DYNAMIC=true", "OMP_MAX_ACTIVE_LEVELS=0"}) {
    const std::vector<double> got = losses(variable);
    EXPECT_THAT(got, AreNear(want, 1e-5)) << variable;
  }
}

TEST_F(CliSurvival, NoOutputReplacesAnInput) {
  here.ok("train c.toml --steps 3");
  const std::string checkpoint = "run/checkpoints/step-000003.h5";
  here.shell("cp " + checkpoint + " k.h5");
  // A path through a folder that does not exist; the data of a run.
  here.fails("prune k.h5 -o new/../k.h5 --method magnitude --sparsity 0.9", 1, "is the input");
  here.fails("report run -o text.txt", 1, "is the input");
  // A stray variable of the supervisor.
  const std::string text = here.read("text.txt");
  here.shell(fmt::format("ESPALIER_OUTCOME=text.txt {} train c.toml --set train.teacher=nope",
                         ESPALIER_PROGRAM));
  EXPECT_EQ(here.read("text.txt"), text);
  // Files that a fresh run replaces.
  here.fails("train c.toml --resume none --init " + checkpoint, 1, "a file of the run directory");
  here.fails(
      "train c.toml --resume none --set pruning.method=file --set pruning.file=" + checkpoint, 1,
      "a file of the run directory");
  here.fails("train c.toml --resume auto --set train.teacher=" + checkpoint, 1,
             "a file of the run directory");
  here.ok("inspect " + checkpoint);
  // No "cannot be removed": the user has removed nothing.
  here.fails("export " + checkpoint + " -o /dev/full/new.h5", 1, "/dev/full is a file");
}

TEST_F(CliSurvival, MasksOfAnotherModelAreNoBug) {
  here.ok("train c.toml --steps 3");
  here.fails(
      "train c.toml --out other --set model.context=8 --set pruning.method=file "
      "--set pruning.file=run/checkpoints/step-000003.h5",
      1, "another model");
}

TEST_F(CliSurvival, ALimitOfFileSizesIsAnError) {
  const Ran ran =
      here.shell(fmt::format("ulimit -f 8; {} train c.toml --steps 3", ESPALIER_PROGRAM));
  EXPECT_GT(ran.code, 0);
  EXPECT_LT(ran.code, 128) << "killed by a signal";
  EXPECT_THAT(ran.err, HasSubstr("File too large"));
}

}  // namespace
}  // namespace espalier::cli_survival_test
