// The manifest of a run, with the real program: what a checkpoint says about its run, what a
// resumed run may not change silently, and ranks that differ.
#include "tests/support/program.h"

namespace espalier::cli_manifest_test {
namespace {

using ::testing::AnyOf;
using ::testing::StartsWith;

const std::string kSeventh = "run/checkpoints/step-000007.h5";

using CliManifest = ProgramTest;

TEST_F(CliManifest, OtherDataEndAResumeUnlessAccepted) {
  here.ok("train c.toml");
  const std::vector<double> undisturbed = here.curve("run", "loss");
  here.shell("rm -r run");
  here.ok("train c.toml --steps 7");
  here.shell("cp text.txt elsewhere.txt; printf x >>text.txt");
  const Ran refused = here.run("train c.toml --resume auto");
  expect_error(refused, 1, kSeventh + " is of a run with other data: data.train had 12");
  EXPECT_THAT(refused.err, HasSubstr("--accept-changes data\n"));
  EXPECT_EQ(here.curve("run", "loss").size(), 7U) << "nothing was changed";
  // The content counts, not the name.
  here.ok("train c.toml --resume auto --set 'data.train=[\"elsewhere.txt\"]'");
  EXPECT_EQ(here.curve("run", "loss"), undisturbed);
  here.shell("rm run/checkpoints/step-0000[12]*");
  EXPECT_THAT(here.ok("train c.toml --resume auto --accept-changes data").err,
              HasSubstr("accepted: data.train had 12"));
  // From now on the new data are the run's.
  here.ok("train c.toml --resume auto");
}

TEST_F(CliManifest, AnotherSeedOrOrderEndsAResumeUnlessAccepted) {
  here.ok("train c.toml --steps 7");
  const std::string changes = " --set train.seed=2 --set train.global_batch=4 ";
  const Ran refused = here.run("train c.toml --resume auto" + changes);
  expect_error(refused, 1, "train.global_batch was 8 and is 4; train.seed was 1 and is 2");
  EXPECT_THAT(refused.err, HasSubstr("--accept-changes order,seed\n"));
  here.fails("train c.toml --resume auto --accept-changes order" + changes, 1,
             "--accept-changes seed");
  here.ok("train c.toml --resume auto --accept-changes seed,order" + changes);
  here.fails("train c.toml --resume auto --accept-changes weather", 2, "weather");
  here.fails("train c.toml --accept-changes data", 2, "--resume");
}

TEST_F(CliManifest, OtherSettingsAreNamed) {
  here.ok("train c.toml --steps 7");
  EXPECT_THAT(here.ok("train c.toml --resume auto --steps 8").err,
              AllOf(Not(HasSubstr("differ")), Not(HasSubstr("manifest"))));
  EXPECT_THAT(here.ok("train c.toml --resume auto --set optimizer.lr=0.001 --set "
                      "train.checkpoint_every=3 --set "
                      "run.threads=2")
                  .err,
              AllOf(HasSubstr("settings differ from the checkpoint's: optimizer.lr was 0.003 and "
                              "is 0.001\n"),
                    HasSubstr("a run without a break: threads were 1 and are 2\n")));
}

TEST_F(CliManifest, IsInCheckpointsAndTheSummary) {
  here.ok("train c.toml --set sparse.storage=auto");
  const auto manifest = here.summary("run")["manifest"];
  EXPECT_THAT(manifest["train_data"].get<std::string>(), StartsWith("12"));
  EXPECT_EQ(manifest["seed"], 1);
  EXPECT_EQ(manifest["global_batch"], 8);
  EXPECT_EQ(manifest["context"], 32);
  EXPECT_EQ(manifest["ranks"], 1);
  EXPECT_EQ(manifest["threads"], 1);
  EXPECT_EQ(manifest["storages"].size(), 8U);
  const auto info = here.run("info --json").json();
  EXPECT_EQ(manifest["kernels"], info["backend"]);
  EXPECT_THAT(manifest["program"].get<std::string>(), StartsWith(info["git"].get<std::string>()));
  for (const char* library : {"gemm", "hdf5", "mpi"}) {
    EXPECT_EQ(manifest[library], info[library]);
  }
  const auto inspected = here.run("inspect --json " + kLast).json();
  EXPECT_EQ(inspected["manifest"], manifest);
  EXPECT_THAT(here.run("inspect " + kLast).out,
              HasSubstr("kernels            " + manifest["kernels"].get<std::string>()));
}

/// A long run, and what happens to its data after the first step.
Ran run_while(const Workplace& here, const std::string& launcher, const std::string& change) {
  return here.shell("rm -rf run; " + launcher +
                    " " ESPALIER_PROGRAM
                    " train c.toml --set train.steps=20000 --set train.eval_every=0 & until [ -s "
                    "run/metrics.jsonl ]; do sleep 0.01; done; " +
                    change + "; wait $!");
}

TEST_F(CliManifest, DataThatAreOverwrittenEndTheRunBeforeItSaves) {
  const std::string overwrite = "printf X | dd conv=notrunc of=text.txt";
  const Ran changed = run_while(here, "", overwrite);
  expect_error(changed, 1,
               "data file text.txt was changed while the run reads it; the state since the last "
               "checkpoint was not saved; restore the file");
  // The same content, or another file of that name, is no change.
  here.shell("printf a | dd conv=notrunc of=text.txt");
  expect_code(run_while(here, "", "touch text.txt; sleep 0.2; kill $!"), 4);
  expect_code(run_while(here, "", "cp text.txt t; printf x >>t; mv t text.txt; sleep 0.2; kill $!"),
              4);
}

TEST_F(CliManifest, DataThatBecomeShorterAreNamed) {
  const std::string text = here.read("text.txt");
  // Whether a step reads the missing part first, or a checkpoint looks at the file.
  const auto message = AnyOf(HasSubstr("data file text.txt has become shorter"),
                             HasSubstr("data file text.txt was changed while the run reads it"));
  const Ran alone = run_while(here, "", ": >text.txt");
  expect_code(alone, 1);
  EXPECT_THAT(alone.err, message);
  here.write("text.txt", text);
  const Ran ranks =
      run_while(here, fmt::format("'{}/scripts/mpirun.sh' 2", ESPALIER_SOURCE_DIR), ": >text.txt");
  expect_code(ranks, 1);
  EXPECT_THAT(ranks.err, message);
  here.write("text.txt", text);
  const Ran killed = run_while(here, "", "kill -BUS $!");
  EXPECT_EQ(killed.code, 135) << "as before";
}

/// Runs two ranks through a script that sees which of them it starts.
Ran run_unequal(const Workplace& here, const std::string& script, const std::string& arguments) {
  here.write("unequal", "#!/bin/sh\n[ \"${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\" = 1 ] && " + script +
                            "\nexec \"$@\"\n");
  return here.shell(
      fmt::format("chmod +x unequal; timeout 120 '{}/scripts/mpirun.sh' 2 ./unequal "
                  "{} train {}",
                  ESPALIER_SOURCE_DIR, ESPALIER_PROGRAM, arguments));
}

void expect_named(const Ran& ran, const std::string& difference) {
  expect_code(ran, 1);
  EXPECT_THAT(ran.err, HasSubstr("(rank 0): ranks have different " + difference));
}

TEST_F(CliManifest, RanksThatDifferAreNamedBeforeTheFirstStep) {
  const Ran kernels = run_unequal(here, "export ESPALIER_KERNELS=dry", "c.toml");
  expect_named(kernels, "kernels (not the same on rank 1): dry on rank 1");

  here.shell("mkdir node && cp c.toml text.txt node && printf x >>node/text.txt && mkdir run");
  const Ran data = run_unequal(here, "cd node", "c.toml --out \"$PWD/run\"");
  expect_named(data, "files of data.train (not the same on rank 1)");

  // Rank 1 has an older copy of the checkpoint.
  here.ok("train c.toml --steps 7");
  here.shell(
      "cp text.txt node; mkdir -p node/run/checkpoints; cp run/checkpoints/step-000005.h5 "
      "node/" +
      kSeventh);
  const Ran checkpoint = run_unequal(here, "cd node", "c.toml --resume auto");
  expect_named(checkpoint, "checkpoints to resume from (not the same on rank 1)");
  EXPECT_EQ(here.curve("run", "loss").size(), 7U);

  // Another program.
  here.shell(std::string("cp " ESPALIER_PROGRAM " other && printf x >>other"));
  here.write(
      "unequal",
      std::string("#!/bin/sh\n[ \"${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\" = 1 ] && exec ./other "
                  "\"$@\"\nexec " ESPALIER_PROGRAM " \"$@\"\n"));
  expect_named(here.shell(fmt::format("timeout 120 '{}/scripts/mpirun.sh' 2 ./unequal train "
                                      "c.toml --out new",
                                      ESPALIER_SOURCE_DIR)),
               "programs (not the same on rank 1)");
}

TEST_F(CliManifest, AConfigThatOnlyOneRankCannotReadIsNamed) {
  here.shell("mkdir node && cp text.txt node && echo '[train]\nstepz = 1' >node/c.toml");
  const Ran ran = run_unequal(here, "cd node", "c.toml");
  EXPECT_NE(ran.code, 0);
  EXPECT_THAT(ran.err, AllOf(HasSubstr("espalier: error (rank 1): "), HasSubstr("train.stepz")));
}

}  // namespace
}  // namespace espalier::cli_manifest_test
