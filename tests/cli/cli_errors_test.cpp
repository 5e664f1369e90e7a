// The real program with bad input: the error names cause and fix, the exit code separates errors of
// the user from others, and existing files are kept.
#include "io/checkpoint/checkpoint.h"
#include "io/run/metrics.h"
#include "tests/support/program.h"

namespace espalier::cli_errors_test {
namespace {

using CliErrors = ProgramTest;

TEST_F(CliErrors, WrongUsageIsTwo) {
  for (const auto& [arguments, words] :
       Rows{{"", "subcommand"},
            {"trane c.toml", "trane"},
            {"train", "config"},
            {"train c.toml --steps 0", "steps"},
            {"train c.toml --nonsense", "nonsense"},
            {"prune a.h5 -o b.h5", "--method"},
            {"sample a.h5", "--prompt"},
            {"sample a.h5 --prompt a --temperature nan", "--temperature: nan is not a finite"},
            {"prune a.h5 -o b.h5 --method magnitude "
             "--sparsity nan",
             "--sparsity: nan is not"},
            {"prune a.h5 -o b.h5 --method nm --n 2", "--n was removed: write --method nm:N:M"},
            {"prune a.h5 -o b.h5 --method nm --m 8", "write --method nm:N:M"},
            {"prune a.h5 -o b.h5 --method block --block 8", "write --method block:EDGE"},
            {"prune a.h5 -o b.h5 --method magnitude --seed 99999999999999999999",
             "--seed: 99999999999999999999 is not between"},
            {"sample a.h5 --prompt a --seed -1", "--seed: -1 is not between 0 and"},
            {"data inspect t --context 99999999999999999999", "--context"},
            {"import --names c.toml --dtype fp32", "--dtype"},
            {"import --names c.toml --map c.map", "--map"},
            {"schedule --latency nan", "nan is not"},
            {"train c.toml --steps -4", "--steps: -4 is not a number above 0 "},
            {"sample a.h5 --prompt a --tokens -4", "--tokens: -4 is not a number of at"},
            {"train c.toml --init ''", "--init: the value is empty"},
            {"train c.toml --resume=", "--resume: the value is empty"},
            {"train c.toml --out= --dry-run", "--out: the value is empty"},
            {"report", "runs"},
            {"eval", "file"},
            {"import text.txt -o b.h5", "--config"}}) {
    here.fails(arguments, 2, words);
  }
}

TEST_F(CliErrors, MistakesInAConfigAreNamed) {
  for (const auto& [setting, words] : Rows{
           {"train.stepz=3", "did you mean \"steps\""},
           {"optimiser.lr=1", "did you mean \"optimizer.lr\""},
           {"train.steps=many", "expected an integer"},
           {"model.width=30", "not divisible by model.heads"},
           {"model.layers=0", "model.layers = 0"},
           {"model.width=25600 --set model.heads=160 --dry-run",
            "at most 2147483647 per parameter are supported"},
           {"pruning.sparsity=1.0", "pruning.sparsity = 1"},
           {"pruning.sparsity=-0.1", "pruning.sparsity"},
           {"pruning.exclude='[\"no.such.*\"]'", "no.such.*"},
           {"sparse.index='{default = \"auto\", \"no.such.*\" = \"bitmap\"}'",
            "sparse.index: the pat"},
           {"parallel.codec='{default = \"fp32\", \"no.such.*\" = \"fp16\"}'",
            "parallel.codec: the pattern \"no.such.*\" matches no parameter"},
           {"sparse.storage='{default = \"dense\", \"no.such.*\" = \"sparse\"}' --dry-run",
            "sparse.storage: the pat"},
           {"pruning.at_step=20", "pruning.at_step = 20 lies after the last step"},
           {"train.steps=20 --out $(printf 'a\\377')", "--out: run.out = \"a\uFFFD\" has a NUL or"},
           {"data.train='[\"text.txt\", \"./text.txt\"]'", "./text.txt is in data.train twice"},
           {"train.global_batch=8 --set train.micro_batch=3", "train.micro_batch = 3"},
           {"parallel.codec=maxmin:9", "allowed: 1 .. 8"},
           {"data.kind=images", "model.kind"}}) {
    if (setting == "model.width=30") {
      here.fails("train c.toml --set model.heads=4 --set " + setting, 1, words);
    } else {
      here.fails("train c.toml --set " + setting, 1, words);
    }
  }
  here.fails("train c.toml --init none.h5", 1, "--init none.h5 cannot be opened");
  here.write("typo.toml", "[model]\nlayers = 2\n[train]\nstep = 3\n");
  here.fails("train typo.toml", 1, "typo.toml:4");
  here.write("broken.toml", "[model\n");
  here.fails("train broken.toml", 1, "broken.toml:1: not valid TOML");
  here.fails("train none.toml", 1, "none.toml cannot be opened");
  EXPECT_FALSE(here.has("run/metrics.jsonl"));
}

TEST_F(CliErrors, DataThatCannotTrain) {
  here.write("empty.txt", "");
  here.write("short.txt", "too short");
  std::filesystem::create_directory(here / "folder");
  for (const auto& [files, words] : Rows{{"[\"none.txt\"]", "none.txt cannot be opened"},
                                         {"[\"empty.txt\"]", "empty.txt is empty"},
                                         {"[\"short.txt\"]", "model.context + 1 = 33"},
                                         {"[\"folder\"]", "folder is not an ordinary file"},
                                         {"[]", "data.train is empty"}}) {
    here.fails("train c.toml --set 'data.train=" + files + "'", 1, words);
  }
  here.fails("train c.toml --set 'data.validation=[\"text.txt\"]'", 1,
             "in data.train and in data.validation");
  // The error comes before the run is created: the directory stays free.
  here.ok("train c.toml --steps 1");
}

TEST_F(CliErrors, FilesThatAreNoCheckpoint) {
  here.write("empty.h5", "");
  here.write("text.h5", "this is no HDF5 file at all, and long enough to hold a signature");
  std::filesystem::create_directory(here / "folder");
  for (const std::string command :
       {"inspect", "eval", "export -o x.h5", "sample --prompt a", "import -o x.h5 --config c.toml",
        "prune -o x.h5 --method magnitude --sparsity 0.5", "train c.toml --init",
        "train c.toml --resume"}) {
    here.fails(command + " none.h5", 1, "none.h5");
    here.fails(command + " folder", 1, "folder");
    here.fails(command + " empty.h5", 1, "empty.h5");
    here.fails(command + " text.h5", 1, "text.h5");
    EXPECT_FALSE(here.has("x.h5")) << command;
  }
  here.fails("report folder", 1, "folder");
  here.fails("report none", 1, "none");
}

TEST_F(CliErrors, DamagedCheckpoints) {
  here.ok("train c.toml");
  const std::string good = here.read(kLast);
  here.write("cut.h5", good.substr(0, good.size() / 2));
  for (const std::string command :
       {"inspect cut.h5", "eval cut.h5", "train c.toml --resume cut.h5"}) {
    here.fails(command, 1, "cut.h5");
  }
  // Flips one bit of one value: finds its bytes in the file.
  const io::CheckpointReader reader(here / kLast);
  const std::string name = "blocks.1.mlp.expand.weight";
  std::vector<float> values(static_cast<size_t>(reader.info(name).nnz));
  reader.optimizer(name, "master",
                   Tensor(values.data(), DType::fp32, Shape{reader.info(name).nnz}));
  const std::string_view wanted(reinterpret_cast<const char*>(values.data()), 64);
  std::string flipped = good;
  for (size_t at = good.find(wanted); at != std::string::npos; at = good.find(wanted, at + 1)) {
    flipped[at + 5] = static_cast<char>(flipped[at + 5] ^ 0x10);  // in /params and in /optim
  }
  ASSERT_NE(flipped, good);
  here.write("flipped.h5", flipped);
  const Ran inspected = here.run("inspect --json flipped.h5");
  expect_error(inspected, 1, "/params/" + name + "/values is damaged");
  EXPECT_EQ(inspected.json()["damaged"].size(), 2U);
  for (const std::string command :
       {"eval flipped.h5", "export flipped.h5 -o x.h5", "train c.toml --out o --resume flipped.h5",
        "train c.toml --out o --init flipped.h5", "sample flipped.h5 --prompt a",
        "prune flipped.h5 -o x.h5 --method magnitude --sparsity 0.5"}) {
    here.fails(command, 1, "flipped.h5: dataset");
    EXPECT_FALSE(here.has("x.h5")) << command;
  }
}

TEST_F(CliErrors, MasksWithTheWrongCount) {
  std::vector<float> values{1, 2, 3};
  const std::vector<uint8_t> four_bits{0x0f, 0, 0, 0, 0, 0, 0, 0};
  io::CheckpointWriter writer(here / "mask.h5");
  writer.write_meta({.config = Workplace::config()});
  writer.write_parameter({.name = "embedding.token",
                          .shape = Shape{4, 4},
                          .encoding = "bitmap",
                          .nnz = 3,
                          .values = Tensor(values.data(), DType::fp32, Shape{3}),
                          .index = four_bits});
  writer.commit();
  for (const std::string command : {"export mask.h5 -o x.h5", "inspect mask.h5"}) {
    here.fails(command, 1,
               "mask.h5: index of \"embedding.token\": bitmap index: 4 bits are set, but 3");
  }
  EXPECT_FALSE(here.has("x.h5"));
}

TEST_F(CliErrors, CheckpointsOfAnotherModel) {
  here.ok("train c.toml --steps 2");
  for (const std::string change : {"model.width=64", "model.layers=3", "model.heads=4",
                                   "model.context=16", "model.tie_embeddings=true"}) {
    const std::string train = "train c.toml --set " + change;
    here.fails(train + " --resume auto", 1, "another model");
    if (change != "model.heads=4") {  // shapes do not depend on the number of heads
      here.fails(train + " --out o --resume none --init run/checkpoints/step-000002.h5", 1,
                 "another model");
      here.fails("eval run/checkpoints/step-000002.h5 --set " + change, 1, "another model");
    }
  }
  here.ok("train c.toml --resume auto");
}

TEST_F(CliErrors, ARunIsNotOverwritten) {
  here.ok("train c.toml --steps 2");
  const std::string metrics = here.read("run/metrics.jsonl");
  here.fails("train c.toml", 1, "--resume auto");
  EXPECT_EQ(here.read("run/metrics.jsonl"), metrics);
  here.ok("train c.toml --resume none --steps 3");
  EXPECT_EQ(here.curve("run", "loss").size(), 3U);
  here.fails("train c.toml --resume nowhere.h5", 1, "nowhere.h5");
  {
    const io::RunLock other((here / "run"));
    const Ran ran = here.run("train c.toml --resume auto");
    expect_error(ran, 5, std::to_string(getpid()));
    EXPECT_THAT(ran.err, HasSubstr("run"));
  }
  here.ok("train c.toml --resume auto");
}

TEST_F(CliErrors, ADivergedRunStopsAndKeepsTheLastGoodCheckpoint) {
  const std::string wild =
      "--set optimizer.kind=sgd --set optimizer.clip=0 --set optimizer.schedule=constant "
      "--set optimizer.warmup_steps=0 --set pruning.method=none ";
  here.ok("train c.toml --steps 5 --set optimizer.lr=0.001 " + wild);
  const Ran ran = here.run("train c.toml --resume auto --set optimizer.lr=1e30 " + wild);
  expect_error(ran, 1, "at step ");
  EXPECT_THAT(ran.err, HasSubstr("optimizer.lr"));
  EXPECT_THAT(ran.err, HasSubstr("step-000005.h5"));
  here.ok("inspect run/checkpoints/step-000005.h5");
  here.ok("train c.toml --resume auto --set optimizer.lr=0.001 " + wild);
  EXPECT_EQ(here.curve("run", "loss").size(), 20U);
}

TEST_F(CliErrors, AnOutputDoesNotReplaceItsInput) {
  here.ok("train c.toml --steps 2");
  const std::string in = "run/checkpoints/step-000002.h5";
  const std::string checkpoint = here.read(in);
  here.shell("ln " + in + " hard.h5; ln -s " + in + " soft.h5");
  for (const std::string command :
       {"export ", "prune --method magnitude --sparsity 0.5 ", "import --config c.toml "}) {
    for (const std::string& out : {in, std::string("hard.h5"), std::string("soft.h5")}) {
      here.fails(command + in + " -o " + out, 1, out + " is the input");
    }
  }
  EXPECT_EQ(here.read(in), checkpoint);
}

TEST_F(CliErrors, AnOutputReplacesNoFileOfARun) {
  here.shell("mkdir -p run/checkpoints; touch run/config.toml run/manifest.json");
  here.write("run/metrics.jsonl", "{\"step\":1,\"loss\":2.5}\n");
  for (const std::string command : {"report run -o ", "data tokenize text.txt -o "}) {
    for (const std::string name : {"config.toml", "manifest.json", "metrics.jsonl", "summary.json",
                                   "trace.json", "supervise.jsonl", ".lock"}) {
      const std::string out = "run/" + name;
      here.fails(command + out, 1, out + " is a file of the run");
    }
    const std::string checkpoint = "run/checkpoints/step-000001.h5";
    here.fails(command + checkpoint, 1, checkpoint + " lies among the checkpoints");
  }
  here.fails("data tokenize text.txt -o run/summary", 1, "run/summary.json is a file");
  here.ok("report run");
  here.ok("report run -o run/report.html");
}

TEST_F(CliErrors, AnOutputReplacesNoOtherInput) {
  here.write("text.txt.json", "text");
  here.shell("ln -s text.txt.json soft");
  for (const auto& [arguments, out] :
       Rows{{"data tokenize c.toml text.txt", "text.txt"},
            {"data tokenize text.txt.json", "soft"},
            {"import plain.h5 --config c.toml", "c.toml"},
            {"prune plain.h5 --config c.toml --method magnitude --sparsity 0.5", "c.toml"},
            {"prune plain.h5 --calibration a --calibration text.txt --method wanda", "text.txt"}}) {
    const std::string before = here.read(out);
    here.fails(arguments + " -o " + out, 1, out + " is the input");
    EXPECT_EQ(here.read(out), before);
  }
  here.fails("data tokenize text.txt.json -o text.txt", 1, "text.txt.json is the input");
}

TEST_F(CliErrors, OutputsThatCannotBeWritten) {
  here.ok("train c.toml --steps 1");
  const std::string in = "run/checkpoints/step-000001.h5";
  here.fails("export " + in + " -o c.toml/x.h5", 1, "c.toml");
  here.fails("train c.toml --out c.toml/run", 1, "c.toml");
  here.fails("inspect " + in + " >/dev/full", 1, "standard output");
  expect_error(here.shell("ESPALIER_KERNELS=abacus " ESPALIER_PROGRAM " eval " + in), 1, "abacus");
}

}  // namespace
}  // namespace espalier::cli_errors_test
