// The real program on several ranks: the same curve as on one, and errors that come once.
#include <algorithm>

#include "tests/support/job.h"

namespace espalier::cli_ranks_test {
namespace {

Ran run_ranks(const Workplace& here, int ranks, const std::string& arguments) {
  return here.shell("timeout 120 " + ranks_command(ranks, arguments));
}

using CliRanks = ProgramTest;

TEST_F(CliRanks, TwoRanksTrainLikeOne) {
  here.ok("train c.toml --out one");
  expect_code(run_ranks(here, 2, "train c.toml --out two"), 0);
  const std::vector<double> one = here.curve("one", "loss");
  const std::vector<double> two = here.curve("two", "loss");
  ASSERT_EQ(one.size(), two.size());
  // Same samples, same masks; sums of gradients differ only in order: fp32 rounding over 20 steps.
  EXPECT_THAT(one, AreNear(two, 1e-4));
  EXPECT_EQ(here.summary("two")["ranks"], 2);
  EXPECT_GT(here.curve("two", "allreduce_bytes").front(), 0);
  // After the pruning only kept elements are sent.
  EXPECT_LT(here.curve("two", "allreduce_bytes").back(),
            0.8 * here.curve("two", "allreduce_bytes").front());
  // With the same number of ranks: the same bits. Another number of ranks can resume the run.
  expect_code(run_ranks(here, 2, "train c.toml --out half --steps 9"), 0);
  here.ok("train c.toml --out half --resume auto --steps 12");
  expect_code(run_ranks(here, 2, "train c.toml --out half --resume auto"), 0);
  const std::vector<double> half = here.curve("half", "loss");
  ASSERT_EQ(half.size(), two.size());
  for (size_t i = 0; i < half.size(); ++i) {
    EXPECT_NEAR(half[i], two[i], i < 9 ? 0 : 1e-4) << "step " << i + 1;
  }
}

TEST_F(CliRanks, ErrorsComeOnceAndEndAllRanks) {
  // Hydra lets the other ranks go on when one ends before MPI starts: each then says the error.
  const bool hydra = here.run("info --json").json()["mpi"].get<std::string>().starts_with("MPICH");
  for (const auto& [arguments, words] :
       Rows{{"train c.toml --set train.global_batch=7",
             "train.global_batch = 7 cannot be divided among 2 ranks"},
            {"train c.toml --set train.stepz=3", "did you mean \"steps\""},
            {"train c.toml --set 'data.train=[\"none.txt\"]'", "none.txt cannot be opened"},
            {"train c.toml --resume none.h5", "none.h5"}}) {
    const Ran ran = run_ranks(here, 2, arguments);
    expect_code(ran, 1);
    const size_t first = ran.err.find(words);
    EXPECT_NE(first, std::string::npos) << ran.err;
    const bool before_mpi = words.starts_with("did you mean");
    if (!hydra || !before_mpi) {
      EXPECT_EQ(ran.err.find(words, first + 1), std::string::npos) << "said twice:\n" << ran.err;
    }
  }
}

TEST_F(CliRanks, ARankThatDoesNotSeeTheDiskSavesAndResumesThroughRankZero) {
  here.shell("mkdir run");
  here.write("hidden.sh",
             "[ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} = 0 ] && exec \"$@\"; exec unshare -m sh -c "
             "'mount -t tmpfs none run && exec \"$0\" \"$@\"' \"$@\"");
  if (here.shell("unshare -m mount -t tmpfs none run").code != 0) {
    GTEST_SKIP() << "no right to hide a folder from a process here";
  }
  for (const std::string settings :
       {"--set parallel.pipeline=2 --set parallel.schedule=1f1b --set train.micro_batch=2",
        "--set parallel.zero=1 --set parallel.codec=maxmin:4 --set parallel.error_feedback=true"}) {
    const std::string train = fmt::format("{} train c.toml {}", ESPALIER_PROGRAM, settings);
    const std::string ranks = fmt::format("'{}/scripts/mpirun.sh' 2 ", ESPALIER_SOURCE_DIR);
    here.shell("rm -rf run; mkdir run");
    here.shell_ok(ranks + train);
    const std::string shared = here.read(kLast);
    here.shell("rm -rf run; mkdir run");
    here.shell_ok(ranks + "sh hidden.sh " + train);
    EXPECT_EQ(here.read(kLast), shared) << settings;
    here.shell("rm -rf run; mkdir run");
    here.shell_ok(ranks + "sh hidden.sh " + train + " --steps 10");
    EXPECT_THAT(here.shell_ok(ranks + "sh hidden.sh " + train + " --resume auto").err,
                HasSubstr("1 rank(s) do not see"));
    EXPECT_EQ(here.read(kLast), shared) << settings;
  }
}

TEST_F(CliRanks, ADataFileThatOneMachineLacksIsNamed) {
  here.shell("mkdir files; cp text.txt files");
  here.write("hidden.sh",
             "[ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} = 0 ] && exec \"$@\"; exec unshare -m sh -c "
             "'mount -t tmpfs none files && exec \"$0\" \"$@\"' \"$@\"");
  if (here.shell("unshare -m mount -t tmpfs none files").code != 0) {
    GTEST_SKIP() << "no right to hide a folder from a process here";
  }
  const Ran ran =
      here.shell(fmt::format("timeout 120 '{}/scripts/mpirun.sh' 2 sh hidden.sh {} train c.toml "
                             "--set 'data.train=[\"files/text.txt\"]'",
                             ESPALIER_SOURCE_DIR, ESPALIER_PROGRAM));
  expect_code(ran, 1);
  EXPECT_THAT(ran.err, HasSubstr("rank 1 has failed: on machine "));
  EXPECT_THAT(ran.err, HasSubstr("files/text.txt cannot be opened"));
  EXPECT_FALSE(here.has("run/metrics.jsonl"));
}

TEST_F(CliRanks, AnAsynchronousPipelineTrainsLikeItsInjector) {
  const std::string train =
      "train c.toml --set train.global_batch=8 --set "
      "parallel.weight_prediction=spectrain --set parallel.partition=[1,3] ";
  here.ok(train + "--set parallel.schedule=async:2 --out one");
  expect_code(
      run_ranks(here, 2,
                train + "--set parallel.schedule=async --set parallel.pipeline=2 --out two"),
      0);
  EXPECT_EQ(here.curve("two", "loss"), here.curve("one", "loss"));
  EXPECT_EQ(here.curve("two", "val_loss"), here.curve("one", "val_loss"));
  for (const std::string run : {"one", "two"}) {
    EXPECT_GT(std::ranges::min(here.curve(run, "step_ms")), 0);
    const auto delays = here.summary(run)["pipeline"]["delays"];
    ASSERT_EQ(delays.size(), 2U);
    EXPECT_EQ(delays[0]["most"], 1);
    EXPECT_GT(delays[0]["mean"].get<double>(), 0.5);
    EXPECT_EQ(delays[1]["most"], 0);
  }
  EXPECT_TRUE(here.has("two/pipeline-measured.svg"));
}

const std::string kPipeline = "--set parallel.pipeline=2 --set train.micro_batch=1 ";

TEST_F(CliRanks, APipelineTrainsLikeOneRank) {
  const std::string train = "train c.toml --set train.global_batch=8 --set train.micro_batch=1 ";
  here.ok(train + "--out one");
  for (const std::string schedule : {"1f1b", "zb-v", "message-driven"}) {
    const std::string run = "run-" + schedule;
    expect_code(
        run_ranks(here, 2,
                  train + kPipeline + "--set parallel.schedule=" + schedule + " --out " + run),
        0);
    EXPECT_EQ(here.curve(run, "loss"), here.curve("one", "loss")) << schedule;
    EXPECT_EQ(here.curve(run, "val_loss"), here.curve("one", "val_loss")) << schedule;
    EXPECT_EQ(here.summary(run)["grid"]["pipeline"], 2);
    EXPECT_EQ(here.summary(run)["parameters"], here.summary("one")["parameters"]);
    EXPECT_EQ(here.summary(run)["kept_parameters"], here.summary("one")["kept_parameters"]);
    const double sent = here.curve(run, "p2p_bytes").front();
    EXPECT_GT(sent, 0);
    EXPECT_EQ(sent, here.curve(run, "p2p_bytes").back()) << "pruning does not change activations";
  }
  // Two stages of two replicas; then a single rank resumes.
  expect_code(run_ranks(here, 4, train + kPipeline + "--out grid --steps 9"), 0);
  here.ok(train + "--out grid --resume auto");
  const std::vector<double> grid = here.curve("grid", "loss");
  const std::vector<double> one = here.curve("one", "loss");
  EXPECT_THAT(grid, AreNear(one, 1e-4));
  // The files that describe the launch are those of the single rank.
  for (const char* picture : {"grid/pipeline-measured.svg", "grid/pipeline-predicted.svg"}) {
    EXPECT_FALSE(here.has(picture)) << picture;
  }
  EXPECT_FALSE(here.summary("grid").contains("pipeline"));
  here.ok("report grid");
  const std::string page = here.read("grid/report.html");
  EXPECT_THAT(page, HasSubstr("From step 10 on the layout differs:"));
  EXPECT_THAT(page, HasSubstr("ranks 4 \\u2192 1"));
  // A launch that makes no step leaves them as they are.
  const auto summary = here.summary("grid");
  expect_code(run_ranks(here, 2, train + kPipeline + "--out grid --resume auto"), 0);
  EXPECT_EQ(here.summary("grid"), summary);
}

}  // namespace
}  // namespace espalier::cli_ranks_test
