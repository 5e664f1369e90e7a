// Pruning of trained checkpoints with calibration data, by the real program.
#include "io/checkpoint/plain_hdf5.h"
#include "tests/support/program.h"

namespace espalier::cli_calibration_test {
namespace {

const std::string kTrained = "run/checkpoints/step-000300.h5";

/// A run of c.toml that has learnt its text.
void train(const Workplace& here, const std::string& more = "") {
  here.write("text.txt", Workplace::text(60'000));
  here.ok(
      "train c.toml --steps 300 --set train.steps=300 --set train.eval_every=100 "
      "--set train.checkpoint_every=100 --set pruning.method=none "
      "--set train.global_batch=16 --set optimizer.lr=6e-3 --set run.trace=false " +
      more);
}

double loss_of(const Workplace& here, const std::string& file) {
  return here.ok("eval --json " + file + " --set train.eval_batches=20")
      .json()["val_loss"]
      .get<double>();
}

/// Validation loss after pruning; `p.h5` is left.
double pruned_loss(const Workplace& here, const std::string& how) {
  here.ok("prune " + kTrained + " -o p.h5 --method " + how);
  return loss_of(here, "p.h5");
}

using CliCalibration = ProgramTest;

TEST_F(CliCalibration, ErrorsOfTrainedWeightsAreOrdered) {
  train(here);
  const double dense = loss_of(here, kTrained);
  for (const std::string sparsity : {"0.6", "0.7"}) {
    const std::string at = " --sparsity " + sparsity;
    const std::string data = at + " --calibration text.txt --samples 64";
    const double magnitude = pruned_loss(here, "magnitude --scope layer" + at);
    const double wanda = pruned_loss(here, "wanda" + data);
    const double sparsegpt = pruned_loss(here, "sparsegpt" + data);
    EXPECT_LT(dense, sparsegpt) << sparsity;
    EXPECT_LT(sparsegpt, wanda) << sparsity;
    EXPECT_LT(wanda, magnitude) << sparsity;
    const nlohmann::json found = here.run("inspect --json p.h5").json();
    for (const nlohmann::json& array : found["arrays"]) {
      const auto name = array["name"].get<std::string>();
      if (name.starts_with("blocks.") && array["shape"].size() == 2) {
        EXPECT_NEAR(array["kept"].get<double>() / array["size"].get<double>(),
                    1 - std::stod(sparsity), 1e-3)
            << name;
      }
    }
  }
}

/// Wanda changes no value; a second call with the same file gives the same bytes; training starts
/// from the result.
TEST_F(CliCalibration, WandaKeepsValuesAndRepeats) {
  train(here);
  const std::string how = " --method wanda --sparsity 0.7 --samples 10 --calibration text.txt";
  here.ok("prune " + kTrained + " -o p.h5" + how);
  here.ok("prune " + kTrained + " -o q.h5" + how + " --set run.threads=2");
  for (const std::string name : {"p", "q"}) {
    here.ok("export " + name + ".h5 -o " + name + "-plain.h5");
  }
  here.ok("export " + kTrained + " -o before.h5");
  const io::PlainReader before(here / "before.h5");
  const io::PlainReader first(here / "p-plain.h5");
  const io::PlainReader second(here / "q-plain.h5");
  for (const std::string& name : before.names()) {
    const auto was = before.read(name);
    const auto is = first.read(name);
    EXPECT_EQ(is, second.read(name)) << name;
    for (size_t i = 0; i < was.size(); ++i) {
      if (is[i] != 0) {
        EXPECT_EQ(is[i], was[i]) << name;
      }
    }
  }
  here.ok("train c.toml --set pruning.method=none --out next --init p.h5");
  EXPECT_NEAR(here.summary("next")["sparsity"].get<double>(), 0.7, 2e-2);
}

TEST_F(CliCalibration, APrunedCheckpointIsPrunedFurther) {
  train(here);
  const std::string data = " --calibration text.txt --samples 8";
  here.ok("prune " + kTrained + " -o half.h5 --method sparsegpt --sparsity 0.5" + data);
  here.ok("prune half.h5 -o p.h5 --method sparsegpt --sparsity 0.8" + data);
  here.ok("export half.h5 -o half-plain.h5");
  here.ok("export p.h5 -o p-plain.h5");
  const io::PlainReader before(here / "half-plain.h5");
  const io::PlainReader after(here / "p-plain.h5");
  const std::string name = "blocks.1.mlp.expand.weight";
  const auto was = before.read(name);
  const auto is = after.read(name);
  for (size_t i = 0; i < was.size(); ++i) {
    EXPECT_TRUE(was[i] != 0 || is[i] == 0) << i;
  }
  EXPECT_LT(loss_of(here, "p.h5"), 5.0);
}

/// Layers see the activations of pruned layers before them: with everything else excluded, the
/// masks of the last layer differ from those after pruning the first.
TEST_F(CliCalibration, LaterLayersSeePrunedActivations) {
  train(here);
  const std::string how = " --method wanda --sparsity 0.8 --samples 16 --calibration text.txt";
  here.ok("prune " + kTrained + " -o all.h5" + how);
  here.ok("prune " + kTrained + " -o last.h5" + how +
          " --exclude 'blocks.0.*' --exclude 'blocks.1.attention.*' "
          "--exclude 'blocks.1.mlp.expand.*'");
  here.ok("export all.h5 -o all-plain.h5");
  here.ok("export last.h5 -o last-plain.h5");
  const std::string name = "blocks.1.mlp.contract.weight";
  EXPECT_NE(io::PlainReader(here / "all-plain.h5").read(name),
            io::PlainReader(here / "last-plain.h5").read(name));
}

TEST_F(CliCalibration, CharactersAndTokensAreThoseOfTheCheckpoint) {
  here.write("other.txt", std::string(400, 'Z') + " a tree");
  here.write("short.txt", "a tree");
  here.ok("train c.toml --set data.kind=chars --set pruning.method=none");
  const std::string prune = "prune " + kLast + " -o p.h5 --method wanda --sparsity 0.5 ";
  here.ok(prune + "--calibration text.txt");
  here.fails(prune + "--calibration other.txt", 1, "character 0x5a is not in the vocabulary");
  here.fails(prune + "--calibration short.txt", 1, "fewer than one context of 32");
  here.fails(prune + "--calibration none.txt", 1, "none.txt");
  EXPECT_FALSE(here.has("q.h5"));

  here.ok("data tokenize text.txt -o t.bin --kind chars");
  here.ok(
      "train c.toml --out tokens --set data.kind=tokens --set pruning.method=none "
      "--set 'data.train=[\"t.bin\"]'");
  const std::string tokens =
      "prune tokens/checkpoints/step-000020.h5 -o p.h5 --method sparsegpt --sparsity 0.5 ";
  EXPECT_THAT(here.ok(tokens + "--calibration t.bin --samples 100000").err,
              HasSubstr("all are used"));
  std::filesystem::remove(here / "p.h5");
  here.fails(tokens + "--calibration text.txt", 1,
             "text.txt is a text (a token file is named *.bin or has a note text.txt.json)");
  EXPECT_FALSE(here.has("p.h5"));
}

TEST_F(CliCalibration, OptionsThatDoNotFitAreNamed) {
  here.ok("train c.toml --steps 1 --set pruning.method=none");
  const std::string in = "run/checkpoints/step-000001.h5";
  const std::string prune = "prune " + in + " -o p.h5 --sparsity 0.5 --method ";
  here.fails(prune + "wanda", 2, "--calibration is missing");
  here.fails(prune + "sparsegpt", 2, "--calibration is missing");
  const Ran unknown = here.run(prune + "wand");
  expect_error(unknown, 1, "unknown pruning method \"wand\": use one of ");
  EXPECT_THAT(unknown.err, HasSubstr("sparsegpt"));
  EXPECT_THAT(unknown.err, Not(HasSubstr("gradual")));
  here.fails(prune + "magnitude --calibration text.txt", 2, "leave it out");
  here.fails(prune + "wanda --calibration text.txt --samples 0", 2, "--samples");
  here.ok("export " + in + " -o plain.h5");
  here.fails(
      "prune plain.h5 -o p.h5 --sparsity 0.5 --method wanda "
      "--calibration text.txt",
      1, "add --config");
  here.ok(
      "prune plain.h5 -o p.h5 --sparsity 0.5 --method wanda --config c.toml "
      "--calibration text.txt");
  for (const std::string method : {"wanda", "sparsegpt"}) {
    here.fails("train c.toml --out other --set pruning.method=" + method, 1,
               "espalier prune CHECKPOINT -o OUT --method " + method);
  }
}

}  // namespace
}  // namespace espalier::cli_calibration_test
