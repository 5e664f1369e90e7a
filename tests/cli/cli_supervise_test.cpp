// espalier supervise with the real program: attempts end by kills, stops, errors and signals; the
// run still ends with the bits of an undisturbed one, or the supervisor says why it gave up.
#include <signal.h>

#include <sstream>

#include "tests/support/job.h"

namespace espalier::cli_supervise_test {
namespace {

const std::string kTrain = ESPALIER_PROGRAM " train c.toml ";
/// Steps of some milliseconds, so that faults meet steps.
const std::string kSlow =
    " --set model.width=64 --set train.steps=60 --set train.eval_every=0 "
    "--set parallel.timeout_s=4 --set train.keep_checkpoints=20 ";
const std::string kEnd = "run/checkpoints/step-000060.h5";

std::string supervise(const std::string& options, const std::string& command) {
  return fmt::format("{} supervise --pause 0.05 {} -- {}", ESPALIER_PROGRAM, options, command);
}

/// The lines of supervise.jsonl with this event.
std::vector<nlohmann::json> events(const Workplace& here, const std::string& event) {
  std::vector<nlohmann::json> found;
  std::istringstream lines(here.read("run/supervise.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    if (auto object = nlohmann::json::parse(line); object["event"] == event) {
      found.push_back(std::move(object));
    }
  }
  return found;
}

/// One key of the "end" lines.
std::vector<std::string> ends(const Workplace& here, const std::string& key) {
  std::vector<std::string> values;
  for (const auto& line : events(here, "end")) {
    values.push_back(line[key].is_string() ? line[key].get<std::string>() : line[key].dump());
  }
  return values;
}

/// The last word of each attempt's command.
std::vector<std::string> last_words(const Workplace& here) {
  std::vector<std::string> words;
  for (const auto& line : events(here, "start")) {
    words.push_back(line["command"].back().get<std::string>());
  }
  return words;
}

bool has_checkpoint(const Workplace& here, int step) {
  return std::filesystem::exists(here / fmt::format("run/checkpoints/step-{:06}.h5", step));
}

/// The last checkpoint of the command without faults.
std::string undisturbed(const Workplace& here, const std::string& command) {
  here.shell_ok("timeout 120 " + command);
  std::string bits = here.read(kEnd);
  here.shell("rm -rf run");
  EXPECT_FALSE(bits.empty());
  return bits;
}

using CliSupervise = ProgramTest;

TEST_F(CliSupervise, AFinishedRunEndsAtOnce) {
  here.shell_ok(supervise("", kTrain));
  EXPECT_TRUE(here.summary("run")["finished"].get<bool>());
  EXPECT_THAT(ends(here, "action"), ElementsAre("end"));
  EXPECT_THAT(ends(here, "newest_step"), ElementsAre("20"));
}

TEST_F(CliSupervise, KilledAndStoppedProcessesComeBackToTheSameBits) {
  const std::string command = ranks_command(2, "train c.toml" + kSlow);
  const std::string bits = undisturbed(here, command);
  Job job(here, supervise("", command));
  const auto fault = [&](int step, int signal, auto processes) {
    std::vector<pid_t> found;
    ASSERT_TRUE(wait_for(
        [&] {
          found = processes();
          return has_checkpoint(here, step) && !found.empty();
        },
        60))
        << job.errors();
    kill(found.back(), signal);
  };
  fault(10, SIGKILL, [&] { return job.ranks(); });
  fault(25, SIGSTOP, [&] { return job.ranks(); });
  fault(40, SIGKILL, [&] { return job.launchers(); });
  job.expect_end(90, 0);
  EXPECT_EQ(here.read(kEnd), bits);
  EXPECT_EQ(here.curve("run", "loss").size(), 60U);
  const std::vector<std::string> actions = ends(here, "action");
  EXPECT_GE(actions.size(), 4U);  // a loaded machine may add retries
  EXPECT_EQ(actions.back(), "end");
}

TEST_F(CliSupervise, AnErrorThatARetryMeetsAgainEndsIt) {
  const Ran ran =
      here.shell(supervise("", ranks_command(2, "train c.toml --set 'data.train=[\"none.txt\"]'")));
  expect_code(ran, 1);
  EXPECT_THAT(ran.err, HasSubstr("none.txt cannot be opened"));
  EXPECT_THAT(ends(here, "action"), ElementsAre("end"));
  expect_error(here.shell(supervise("", "true")), 2, "has no `espalier train");
  expect_error(here.shell(supervise("", kTrain + "--trane")), 2, "--trane");
  expect_error(here.shell(supervise("--stall nan", kTrain)), 2, "--stall");
  expect_error(here.shell(supervise("--pause nan", kTrain)), 2, "--pause");
}

TEST_F(CliSupervise, ALauncherThatFailsIsTriedAgainUntilItIsGivenUp) {
  // The first two attempts fail as a launcher does: no rank reports an outcome.
  here.write("launcher.sh",
             "echo x >>attempts; [ $(wc -l <attempts) -gt $FAILURES ] || exit 1; exec \"$@\"");
  here.shell_ok("export FAILURES=2; " + supervise("", "sh launcher.sh " + kTrain));
  EXPECT_THAT(ends(here, "action"), ElementsAre("retry", "retry", "end"));
  here.shell("rm -rf run attempts");
  const Ran ran =
      here.shell("export FAILURES=99; " + supervise("--attempts 3", "sh launcher.sh " + kTrain));
  expect_code(ran, 5);
  EXPECT_THAT(ran.err, HasSubstr("3 attempts in a row saved no checkpoint"));
  EXPECT_THAT(ends(here, "action"), ElementsAre("retry", "retry", "give up"));
}

TEST_F(CliSupervise, ARunThatContinuesAnotherStartsFromItsFileUntilItHasSaved) {
  const std::string file = "first/checkpoints/step-000010.h5";
  here.ok("train c.toml --out first --steps 10");
  here.ok("train c.toml --resume " + file);
  const std::string bits = here.read(kLast);
  const std::vector<double> losses = here.curve("run", "loss");
  here.shell("rm -rf run");
  // 1: the launcher fails. 2: killed before the first checkpoint. 3: the launcher fails after it.
  here.write("launcher.sh",
             "echo x >>attempts; n=$(wc -l <attempts)\n"
             "[ $n = 1 ] && exit 1\n"
             "[ $n = 3 ] && { \"$@\" --steps 15; exit 1; }\n"
             "[ $n = 4 ] && exec \"$@\"\n"
             "\"$@\" --set train.steps=1000000 --set train.checkpoint_every=0 &\n"
             "while [ ! -s run/metrics.jsonl ] && kill -0 $!; do sleep 0.01; done\n"
             "kill -9 $!; wait $!");
  const Ran ran = here.shell_ok("timeout 120 " +
                                supervise("", "sh launcher.sh " + kTrain + "--resume " + file));
  EXPECT_THAT(ends(here, "action"), ElementsAre("retry", "retry", "retry", "end")) << ran.err;
  EXPECT_THAT(last_words(here), ElementsAre(file, file, file, "auto"));
  EXPECT_EQ(here.curve("run", "loss"), losses);
  const bool equal = here.read(kLast) == bits;
  EXPECT_TRUE(equal) << "last checkpoint";
}

TEST_F(CliSupervise, AnOldRunIsContinuedOnlyAsTheCommandSays) {
  here.ok("train c.toml");
  // 1: the launcher fails. 2: the run fails at once, where a third attempt follows.
  here.write("launcher.sh",
             "echo x >>attempts; n=$(wc -l <attempts)\n"
             "[ $n = 1 ] && exit 1\n"
             "[ $n = 2 ] && [ -e fails ] && { \"$@\" --steps 2 >/dev/null; exit 1; }\n"
             "exec \"$@\"");
  const auto supervised = [&](const std::string& resume) {
    here.shell("rm -f attempts run/supervise.jsonl");
    return here.shell(supervise("", "sh launcher.sh " + kTrain + resume));
  };
  const Ran refused = supervised("");
  expect_code(refused, 1);
  EXPECT_THAT(refused.err, HasSubstr("run holds a run already"));

  const std::string file = "run/checkpoints/step-000010.h5";
  const Ran from_file = supervised("--resume " + file);
  expect_code(from_file, 0);
  EXPECT_THAT(from_file.err, HasSubstr("resumed from " + file));
  EXPECT_THAT(last_words(here), ElementsAre(file, file));

  here.shell("touch fails");
  expect_code(supervised("--set optimizer.lr=0.1 --resume none"), 0);
  EXPECT_THAT(last_words(here), ElementsAre("none", "none", "auto"));
  EXPECT_THAT(here.read("run/config.toml"), HasSubstr("lr = 0.1\n"));
}

TEST_F(CliSupervise, AJobThatDoesNothingIsEnded) {
  Job job(here, supervise("--stall 4", kTrain + kSlow));
  ASSERT_TRUE(job.wait_for_steps(10)) << job.errors();
  kill(job.ranks().back(), SIGSTOP);
  job.expect_end(60, 0);
  EXPECT_THAT(job.errors(), HasSubstr("it wrote nothing for 4 s"));
  EXPECT_THAT(ends(here, "action"), ElementsAre("retry", "end"));
}

TEST_F(CliSupervise, AClockThatWasSetBackHidesNoProgress) {
  here.write("writes.sh",
             "mkdir -p run/checkpoints; touch -d 2100-01-01 run/checkpoints\n"
             "for i in 1 2 3 4 5 6; do echo >>run/metrics.jsonl; sleep 0.3; done");
  here.shell_ok(supervise("--stall 1", "sh writes.sh " + kTrain));
  EXPECT_THAT(ends(here, "action"), ElementsAre("end"));
}

/// A signal to the supervisor saves the run, which `wrapper` starts.
void expect_saved(const std::string& wrapper) {
  const Workplace here;
  here.write("script.sh", "\"$@\"\nexit $?");
  Job job(here, supervise("", wrapper + ranks_command(2,
                                                      "train c.toml --set train.steps=1000000 "
                                                      "--set train.checkpoint_every=0")));
  ASSERT_TRUE(job.wait_for_steps(3)) << job.errors();
  const std::vector<pid_t> ranks = job.ranks();
  kill(job.pid(), SIGTERM);
  job.expect_end(60, 4);
  expect_gone(ranks);
  EXPECT_TRUE(has_checkpoint(here, static_cast<int>(here.curve("run", "loss").size())));
}

TEST_F(CliSupervise, ASignalSavesTheRunAndEndsIt) { expect_saved(""); }

// A shell dies of the signal at once; so does the second one, which gets it after the first.
TEST_F(CliSupervise, ASignalSavesTheRunOfAScript) { expect_saved("sh script.sh sh script.sh "); }

// So does `timeout`, which makes a process group of its own.
TEST_F(CliSupervise, ASignalSavesTheRunBelowTimeout) { expect_saved("sh script.sh timeout 600 "); }

TEST_F(CliSupervise, ASignalDuringTheStartIsAStop) {
  // A launcher that starts drops the first request.
  here.write("starts.sh", "trap : USR1; touch started; sleep 0.5; trap - USR1; exec sleep 60");
  Job job(here, supervise("", "sh starts.sh " + kTrain));
  ASSERT_TRUE(wait_for([&] { return here.has("started"); }, 60));
  kill(job.pid(), SIGTERM);
  job.expect_end(30, 4);
  EXPECT_THAT(ends(here, "action"), ElementsAre("end"));
}

TEST_F(CliSupervise, AnExitCodeIsNotCalledASignal) {
  here.write("ends.sh", "[ -e tried ] && kill -9 $$; touch tried; exit 132");
  expect_code(here.shell(supervise("--attempts 2", "sh ends.sh " + kTrain)), 5);
  EXPECT_THAT(ends(here, "error"), ElementsAre("exit code 132", "ended by signal 9"));
}

// 1: a damaged outcome. 2: one of an attempt that succeeds.
TEST_F(CliSupervise, OnlyAWholeOutcomeOfAFailedAttemptCounts) {
  here.write("reports.sh",
             "echo \"$ESPALIER_OUTCOME\" >>names; mkdir -p run/outcome.json/folder\n"
             "if [ $(wc -l <names) = 1 ]; then\n"
             "echo '{\"exit\":5,\"error\":7}' >$ESPALIER_OUTCOME; exit 1\n"
             "else echo '{\"exit\":1,\"error\":\"x\"}' >$ESPALIER_OUTCOME; fi");
  const Ran ran = here.shell_ok(supervise("", "sh reports.sh " + kTrain));
  EXPECT_THAT(ends(here, "error"), ElementsAre("exit code 1", "")) << ran.err;
  std::istringstream names(here.read("names"));
  std::string first;
  std::string second;
  names >> first >> second;
  EXPECT_NE(first, second) << "a straggler of the first attempt could report for the second";
  EXPECT_FALSE(std::filesystem::exists(first));
  EXPECT_FALSE(std::filesystem::exists(second));
}

// As mpirun of MPICH may end after a signal.
TEST_F(CliSupervise, AStopIsSeenThoughTheLauncherReturns0) {
  here.write("stops.sh", "echo '{\"exit\":4,\"error\":\"stopped\"}' >$ESPALIER_OUTCOME");
  expect_code(here.shell(supervise("", "sh stops.sh " + kTrain)), 4);
}

TEST_F(CliSupervise, APipeInThePlaceOfItsLogIsNotWaitedFor) {
  here.shell("mkdir run; mkfifo run/supervise.jsonl");
  EXPECT_THAT(here.shell_ok("timeout 30 " + supervise("", kTrain)).err,
              HasSubstr("run/supervise.jsonl is not an ordinary file"));
}

TEST_F(CliSupervise, AKilledSupervisorLeavesNoProcess) {
  Job job(here, supervise("", ranks_command(2, "train c.toml --set train.steps=1000000")));
  const std::vector<pid_t> ranks = job.ranks_after(3);
  kill(job.pid(), SIGKILL);
  expect_gone(ranks);
}

TEST_F(CliSupervise, FewerRanksGoOnWhereTheGridAllows) {
  // A machine that is left with two of its ranks' places; 3 does not divide the batch of 8.
  here.write("launcher.sh", "n=$2; shift 2; [ $n -le 2 ] || exit 1; exec '" ESPALIER_SOURCE_DIR
                            "/scripts/mpirun.sh' $n \"$@\"");
  EXPECT_THAT(here.shell_ok(supervise("--fewer-ranks", "sh launcher.sh -n 4 " + kTrain)).err,
              HasSubstr("going on with 2 ranks instead of 4"));
  EXPECT_EQ(here.summary("run")["ranks"], 2);
}

}  // namespace
}  // namespace espalier::cli_supervise_test
