// The real program, from data to report: files and output of each subcommand.
#include <cmath>
#include <map>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/plain_hdf5.h"
#include "io/config/config.h"
#include "io/hdf5/hdf5.h"
#include "src/config/dump.h"
#include "tests/support/program.h"

namespace espalier::cli_test {
namespace {

using Json = nlohmann::json;

/// All arrays of two files of dense arrays are the same, bit for bit up to the sign of zero.
void expect_same_arrays(const std::filesystem::path& a, const std::filesystem::path& b) {
  const io::PlainReader left(a);
  const io::PlainReader right(b);
  ASSERT_EQ(left.names(), right.names());
  ASSERT_FALSE(left.names().empty());
  for (const std::string& name : left.names()) {
    EXPECT_EQ(left.shape(name), right.shape(name)) << name;
    EXPECT_EQ(left.read(name), right.read(name)) << name;
  }
}

using Cli = ProgramTest;

TEST_F(Cli, TrainLeavesARunDirectory) {
  const Ran ran = here.ok("train c.toml");
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(ran.err, HasSubstr("pruned after step 8"));
  const std::vector<double> losses = here.curve("run", "loss");
  ASSERT_EQ(losses.size(), 20U);
  EXPECT_LT(losses.back(), 0.8 * losses.front());
  EXPECT_EQ(here.curve("run", "val_loss").size(), 2U);
  const Json summary = here.summary("run");
  EXPECT_TRUE(summary["finished"].get<bool>());
  EXPECT_EQ(summary["final_val_loss"].get<double>(), here.curve("run", "val_loss").back());
  EXPECT_NEAR(summary["sparsity"].get<double>(), 0.8, 1e-4);
  EXPECT_EQ(summary["ranks"], 1);
  EXPECT_NE(summary["git"], "");
  size_t planned = 0;  // the plan has the same kinds of memory as the measured bytes
  for (const auto& [kind, bytes] : summary["memory"]["ranks"][0].items()) {
    planned +=
        bytes.is_object() && kind != "all" ? summary["planned_peak"].at(kind).get<size_t>() : 0;
  }
  EXPECT_EQ(planned, summary["planned_peak"]["all"].get<size_t>());
  double first = INFINITY;
  const Json trace = Json::parse(here.read("run/trace.json"));
  for (const Json& event : trace["traceEvents"]) {
    first = event.contains("ts") ? std::min(first, event["ts"].get<double>()) : first;
  }
  EXPECT_EQ(first, 0) << "the trace begins with its first event";
  // The resolved config repeats the run.
  here.ok("train run/config.toml --out again");
  EXPECT_EQ(here.curve("again", "loss"), losses);
}

/// metrics.jsonl has null for a loss that is not a number, and so has the summary.
TEST_F(Cli, ALastUpdateThatSpoilsTheWeightsIsAnErrorAndNotSaved) {
  const std::string options =
      "train c.toml --set train.steps=1 --set optimizer.kind=sgd --set optimizer.lr=1e30 "
      "--set optimizer.warmup_steps=0 --set optimizer.clip=0 --set pruning.method=none";
  here.fails(options, 1, "the validation loss is");
  EXPECT_FALSE(here.has("run/checkpoints/step-000001.h5"));
  EXPECT_FALSE(here.has("run/summary.json"));
}

TEST_F(Cli, ResumeIsNoBreak) {
  here.ok("train c.toml --out whole");
  // Interrupted before and after the pruning, at steps with and without a regular checkpoint.
  here.ok("train c.toml --out parts --steps 7");
  EXPECT_FALSE(here.summary("parts")["finished"].get<bool>());
  here.ok("train c.toml --out parts --steps 13 --resume auto");
  here.ok("train c.toml --out parts --resume auto");
  EXPECT_EQ(here.curve("whole", "loss"), here.curve("parts", "loss"));
  EXPECT_EQ(here.curve("whole", "val_loss"), here.curve("parts", "val_loss"));
  here.ok("export whole/checkpoints/step-000020.h5 -o whole.h5");
  here.ok("export parts/checkpoints/step-000020.h5 -o parts.h5");
  expect_same_arrays(here / "whole.h5", here / "parts.h5");
  // Resuming after the end is no error and changes nothing.
  here.ok("train c.toml --out parts --resume auto");
  EXPECT_EQ(here.curve("parts", "loss").size(), 20U);
}

TEST_F(Cli, LastNamesTheNewestCheckpoint) {
  const std::string last = "run/checkpoints/last.h5";
  here.fails("inspect " + last, 1, last);
  here.ok("train c.toml --steps 7 --set train.checkpoint_every=3");
  const auto same = [&](const std::string& before, const std::string& after = "") {
    EXPECT_EQ(here.run(before + last + after).out,
              here.ok(before + "run/checkpoints/step-000007.h5" + after).out)
        << before;
  };
  same("inspect --json ");
  same("eval ");
  same("sample --tokens 5 --prompt a ");
  here.ok("codec --checkpoint " + last);  // prints times
  here.ok("prune " + last + " -o pruned.h5 --method magnitude --sparsity 0.5");
  here.ok("export " + last + " -o arrays.h5");
  here.ok("train c.toml --out next --init " + last);
  here.ok("train c.toml --out on --resume " + last);
  EXPECT_EQ(here.curve("on", "loss").size(), 13U);
  // A file of that name is taken as it is.
  here.shell("mv pruned.h5 run/checkpoints/last.h5");
  EXPECT_NE(here.run("inspect --json " + last).out,
            here.run("inspect --json run/checkpoints/step-000007.h5").out);
}

TEST_F(Cli, EvalIsTheValidationLossOfTheRun) {
  for (const std::string changes : {"", "--set train.dtype=bf16", "--set train.dtype=fp16",
                                    "--set data.kind=chars --set train.micro_batch=2"}) {
    here.ok("train c.toml --resume none " + changes);
    const Json found = here.ok("eval --json " + kLast).json();
    const double loss = here.summary("run")["final_val_loss"].get<double>();
    EXPECT_EQ(found["val_loss"].get<double>(), loss) << changes;
    EXPECT_DOUBLE_EQ(found["perplexity"].get<double>(), std::exp(loss));
    EXPECT_DOUBLE_EQ(found["bits_per_byte"].get<double>(), loss / std::log(2.0));
    EXPECT_EQ(found["predictions"], 2 * 8 * 32);
    EXPECT_THAT(here.run("eval " + kLast).out, HasSubstr(fmt::format("{:.6f}", loss)));
  }
}

/// IDX files of `count` images of 4 x 4 pixels: class c is bright in row c.
void write_images(const Workplace& here, int count) {
  auto number = [](int value) { return std::string{0, 0, 0, static_cast<char>(value)}; };
  std::string images = std::string{0, 0, 8, 3} + number(count) + number(4) + number(4);
  std::string labels = std::string{0, 0, 8, 1} + number(count);
  for (int i = 0; i < count; ++i) {
    labels += static_cast<char>(i % 3);
    for (int pixel = 0; pixel < 16; ++pixel) {
      images += static_cast<char>(pixel / 4 == i % 3 ? 100 + i % 7 : (i * 31 + pixel * 17) % 60);
    }
  }
  here.write("images", images);
  here.write("labels", labels);
}

TEST_F(Cli, InspectsImages) {
  write_images(here, 120);
  const Json found = here.ok("data inspect images labels --kind images --json").json();
  EXPECT_EQ(found["image"], Json({4, 4, 1}));
  EXPECT_EQ(found["classes"], 3);
  EXPECT_EQ(found["train"]["images"], 108);
  EXPECT_EQ(found["validation"]["images"], 12);
  const Ran text = here.ok("data inspect images labels --kind images");
  const std::string mean = fmt::format("mean = [{:.6f}]\n", found["mean"][0].get<double>());
  const std::string deviation =
      fmt::format("deviation = [{:.6f}]\n", found["deviation"][0].get<double>());
  EXPECT_THAT(text.out, HasSubstr("[model]\nimage = [4, 4, 1]\n\n[data]\n" + mean + deviation));
  here.fails("data inspect images labels --kind images --format cifar10", 1,
             "not a multiple of 3073");
  here.ok(
      "train c.toml --set model.kind=mlp --set data.kind=images --set "
      "'data.train=[\"images\", \"labels\"]' --set data.mean=0.2 --set "
      "data.deviation=0.3 --set data.crop=1 --set data.order=epochs");
  EXPECT_EQ(here.run("eval --json " + kLast).json()["val_loss"],
            here.summary("run")["final_val_loss"]);
  EXPECT_NE(here.run("eval --json --set data.mean=0.3 " + kLast).json()["val_loss"],
            here.summary("run")["final_val_loss"]);
  here.fails(
      "train c.toml --resume auto --set model.kind=mlp --set data.kind=images "
      "--set 'data.train=[\"images\", \"labels\"]'",
      1, "data.mean was [0.2] and is []");
}

TEST_F(Cli, AnMlpGoesTheSameWay) {
  write_images(here, 120);
  const std::string mlp =
      "--set model.kind=mlp --set 'model.hidden=[16, 16]' --set data.kind=images "
      "--set 'data.train=[\"images\", \"labels\"]' --set optimizer.lr=0.03";
  const Ran ran = here.ok("train c.toml " + mlp);
  EXPECT_THAT(ran.err, HasSubstr(" images/s"));
  EXPECT_THAT(ran.err, HasSubstr("top-1 "));
  EXPECT_LT(here.curve("run", "loss").back(), 0.7 * here.curve("run", "loss").front());
  const Ran eval = here.ok("eval --json " + kLast);
  EXPECT_EQ(eval.json()["val_loss"], here.summary("run")["final_val_loss"]);
  EXPECT_EQ(eval.json()["val_top1"], here.summary("run")["final_val_top1"]);
  EXPECT_FALSE(eval.json().contains("val_top5")) << "there are three classes";
  EXPECT_THAT(here.run("eval " + kLast).out, HasSubstr("val_top1"));
  EXPECT_FALSE(eval.json().contains("perplexity"));
  here.ok("prune " + kLast + " -o p.h5 --method magnitude --sparsity 0.9");
  here.ok("export p.h5 -o plain.h5");
  here.ok("import plain.h5 -o back.h5 --config run/config.toml");
  EXPECT_EQ(here.run("eval --json back.h5").json()["val_loss"],
            here.run("eval --json p.h5").json()["val_loss"]);
  here.fails("sample p.h5 --prompt a", 1, "classifies images");
  for (const std::string method : {"wanda", "sparsegpt"}) {
    here.ok("prune " + kLast +
            " -o p.h5 --sparsity 0.5 --calibration images "
            "--calibration labels --method " +
            method);
    EXPECT_LT(here.run("eval --json p.h5").json()["val_loss"], 1.0) << method;
  }
}

TEST_F(Cli, ASignalEndsTheStepAndSaves) {
  for (const std::string signal : {"TERM", "INT", "USR1"}) {
    const Ran ran =
        here.shell("timeout --preserve-status -s " + signal +
                   " 0.5 " ESPALIER_PROGRAM
                   " train c.toml --resume none --set train.steps=1000000 --set train.eval_every=0 "
                   "--set train.checkpoint_every=0 --set run.trace=false --out " +
                   signal);
    expect_code(ran, 4);
    EXPECT_THAT(ran.err, HasSubstr("by a signal"));
    const auto steps = here.summary(signal)["steps"].get<int64_t>();
    EXPECT_GT(steps, 0);
    EXPECT_EQ(here.curve(signal, "loss").size(), static_cast<size_t>(steps));
    here.ok(fmt::format("inspect {}/checkpoints/step-{:06}.h5", signal, steps));
  }
}

TEST_F(Cli, PruneKeepsTheLargestAndInspectCountsThem) {
  here.ok("train c.toml --set pruning.method=none");
  const Ran pruned = here.ok("prune " + kLast + " -o p.h5 --method magnitude --sparsity 0.75");
  EXPECT_THAT(pruned.out, HasSubstr("25.00 %"));
  const Json found = here.ok("inspect --json p.h5").json();
  int64_t prunable = 0;
  int64_t kept = 0;
  for (const Json& array : found["arrays"]) {
    const auto name = array["name"].get<std::string>();
    const bool block = name.starts_with("blocks.") && array["shape"].size() == 2;
    EXPECT_EQ(array["encoding"] == "full", !block) << name;
    prunable += block ? array["size"].get<int64_t>() : 0;
    kept += block ? array["kept"].get<int64_t>() : 0;
  }
  EXPECT_EQ(prunable, 2 * 12 * 32 * 32);
  EXPECT_EQ(kept, prunable / 4);
  // Survivors keep their values; pruned elements were smaller than all of them.
  here.ok("export " + kLast + " -o before.h5");
  here.ok("export p.h5 -o after.h5");
  const io::PlainReader before(here / "before.h5");
  const io::PlainReader after(here / "after.h5");
  float smallest_kept = HUGE_VALF;
  float largest_gone = 0;
  for (const std::string& name : before.names()) {
    const auto was = before.read(name);
    const auto is = after.read(name);
    for (size_t i = 0; i < was.size(); ++i) {
      if (is[i] != 0 || was[i] == 0) {
        EXPECT_EQ(is[i], was[i]) << name;
      }
      if (name.starts_with("blocks.") && before.shape(name).rank() == 2) {
        float& limit = is[i] != 0 ? smallest_kept : largest_gone;
        limit = is[i] != 0 ? std::min(limit, std::abs(was[i])) : std::max(limit, std::abs(was[i]));
      }
    }
  }
  EXPECT_GE(smallest_kept, largest_gone);
  // Training can start from it, but cannot resume as if nothing had changed.
  here.ok("train c.toml --set pruning.method=none --out next --init p.h5");
  EXPECT_NEAR(here.summary("next")["sparsity"].get<double>(), 0.75, 1e-12);
  here.fails("train c.toml --out other --resume p.h5", 1, "--init");
}

/// A round of a lottery ticket (docs/pruning.md).
TEST_F(Cli, ARunRewindsToAnEarlierStepWithMasksOfTheTrainedWeights) {
  const std::string dense = "train c.toml --set pruning.method=none ";
  here.ok(dense + "--out rewind --steps 5");
  here.ok(dense + "--out round-0 --resume rewind");
  here.ok("prune round-0 -o masks.h5 --method magnitude --sparsity 0.5");
  const std::string pruned =
      "train c.toml --set pruning.method=file --set pruning.file=masks.h5 --set pruning.at_step=5 ";
  const std::string rewound = pruned + "--out round-1 --resume rewind";
  here.fails(rewound, 1, "--accept-changes masks");
  here.ok(rewound + " --accept-changes masks");
  EXPECT_NEAR(here.summary("round-1")["sparsity"].get<double>(), 0.5, 1e-4);
  // Weights, moments, learning rate and order of data are those of step 5.
  here.ok(pruned + "--out whole");
  const std::vector<double> whole = here.curve("whole", "loss");
  ASSERT_EQ(whole.size(), 20U);
  EXPECT_EQ(here.curve("round-1", "loss"), std::vector<double>(whole.begin() + 5, whole.end()));
}

TEST_F(Cli, AConfigWithoutAModelTrainsTheNetworkOfInit) {
  here.ok("train c.toml");
  std::string text = here.read("run/config.toml");  // has every key
  const size_t model = text.find("[model]");
  const std::string section = text.substr(model, text.find("\n[", model) - model);
  EXPECT_THAT(section, HasSubstr("width"));
  text.erase(model, section.size());
  here.write("rest.toml", text);
  here.fails("train rest.toml --out next --init missing.h5", 1, "missing.h5");
  here.ok("train rest.toml --out next --init " + kLast);
  EXPECT_THAT(here.read("next/config.toml"), HasSubstr(section));
  // So does a resumed run, which does not need --init again.
  here.ok("train rest.toml --out parts --steps 2 --init " + kLast);
  here.ok("train rest.toml --out parts --steps 3 --resume auto");
  here.ok("train rest.toml --out parts --resume parts/checkpoints/last.h5");
  EXPECT_EQ(here.curve("parts", "loss"), here.curve("next", "loss"));
  // A key of the command line replaces the checkpoint's.
  here.ok("train rest.toml --out other --set model.dropout=0.1 --init " + kLast);
  EXPECT_THAT(here.read("other/config.toml"), HasSubstr("dropout = 0.1"));
}

TEST_F(Cli, PruneTakesCheckpointsOfEveryType) {
  for (const std::string dtype : {"bf16", "fp16"}) {
    here.ok("train c.toml --resume none --set train.dtype=" + dtype);
    here.ok("prune " + kLast + " -o p.h5 --method magnitude --sparsity 0.9");
    here.ok("eval p.h5");
    const io::CheckpointReader before(here / kLast);
    const io::CheckpointReader pruned(here / "p.h5");
    for (const std::string& name : pruned.names()) {
      EXPECT_EQ(pruned.info(name).dtype, before.info(name).dtype) << name;
    }
    here.ok("train c.toml --resume none --out next --init p.h5 --set train.dtype=" + dtype);
  }
}

/// The plan of a run from pruned weights, which prunes nothing itself, has the bytes of the run.
TEST_F(Cli, ADryRunKnowsTheMasksOfInit) {
  here.ok("train c.toml --set pruning.sparsity=0.9");
  const std::string next = "train c.toml --out next --set pruning.method=none --init " + kLast;
  here.ok(next);
  const Json planned = here.summary("next")["planned_peak"];
  const Json listed = Json::parse(here.run(next + " --dry-run --json").out);
  for (const char* kind : {"weight", "gradient", "master", "moment", "index"}) {
    EXPECT_EQ(listed["peak"][kind], planned.value(kind, 0)) << kind;
  }
  EXPECT_LT(listed["pruned"]["model_state"].get<double>(),
            0.7 * listed["dense"]["model_state"].get<double>());
  EXPECT_NEAR(listed["sparsity"].get<double>(), 0.9, 1e-3);
  const Ran refused = here.run(next + " --set train.memory_budget=1MiB");
  expect_code(refused, 1);
  EXPECT_THAT(refused.err, Not(HasSubstr("prune from the start")));
}

TEST_F(Cli, PruneKnowsAllMethods) {
  here.ok("train c.toml --set pruning.method=none --steps 1");
  const std::string in = "run/checkpoints/step-000001.h5";
  for (const std::string how :
       {"random --sparsity 0.5 --seed 3", "nm:2:4", "nm:n=4:m=8", "block:8 --sparsity 0.5",
        "magnitude --sparsity 0.5 --scope layer --exclude 'blocks.0.*'"}) {
    EXPECT_THAT(here.ok("prune " + in + " -o p.h5 --method " + how).out, HasSubstr("50.00 %"))
        << how;
    EXPECT_TRUE(std::isfinite(here.ok("eval --json p.h5").json()["val_loss"].get<double>())) << how;
  }
}

TEST_F(Cli, ExportAndImportAreInverse) {
  here.ok("train c.toml");
  here.ok("export " + kLast + " -o plain.h5");
  here.ok("import plain.h5 -o back.h5 --config c.toml");
  here.ok("export back.h5 -o again.h5");
  expect_same_arrays(here / "plain.h5", here / "again.h5");
  const Json was = here.run("inspect --json " + kLast).json();
  const Json is = here.run("inspect --json back.h5").json();
  EXPECT_EQ(was["kept_parameters"], is["kept_parameters"]);
  EXPECT_EQ(was["arrays"].size(), is["arrays"].size());
  EXPECT_EQ(here.run("eval --json back.h5").json()["val_loss"],
            here.run("eval --json " + kLast).json()["val_loss"]);
  // A plain file works with a description of its network.
  EXPECT_EQ(here.run("eval --json plain.h5 --config c.toml").json()["val_loss"],
            here.run("eval --json " + kLast).json()["val_loss"]);
  const Json plain = here.run("inspect --json plain.h5").json();
  EXPECT_EQ(plain["kind"], "plain");
  EXPECT_EQ(plain["kept_parameters"], was["kept_parameters"]);
  // Without a config the names determine the prunable parameters: here the same matrices.
  here.ok("prune plain.h5 -o bare.h5 --method magnitude --sparsity 0.9");
  const Json bare = here.run("inspect --json bare.h5").json();
  here.ok("prune plain.h5 -o full.h5 --config c.toml --method magnitude --sparsity 0.9");
  const Json full = here.run("inspect --json full.h5").json();
  EXPECT_EQ(bare["kept_parameters"], full["kept_parameters"]);
  EXPECT_LT(bare["kept_parameters"], was["kept_parameters"]);
  here.fails("eval bare.h5", 1, "--config");
  EXPECT_EQ(here.run("eval --json bare.h5 --config c.toml").json()["val_loss"],
            here.run("eval --json full.h5").json()["val_loss"]);
}

TEST_F(Cli, ImportAndPruneKeepTheTypesOfPlainArrays) {
  here.ok("train c.toml");
  here.ok("export " + kLast + " -o plain.h5");
  const io::PlainReader plain(here / "plain.h5");
  const std::string other = plain.names().back();
  ASSERT_NE(other, "embedding.token");
  const auto types_of = [&](const std::string& file) {
    std::map<std::string, int> types;
    const Json found = here.run("inspect --json " + file).json();
    for (const Json& array : found["arrays"]) {
      const auto type = array["dtype"].get<std::string>();
      types[type] += 1;
      EXPECT_EQ(type == "fp32", array["name"] == other) << array;
    }
    return types;
  };
  const auto config_of = [&](const std::string& file) {
    return here.run("inspect --json " + file).json()["config"].get<std::string>();
  };
  const auto check_types = [&]<class Number>(Number, io::hdf5::Type type) {
    const std::string name(name_of(dtype_of<Number>()));
    auto file = io::hdf5::File::create(here / "half.h5", "half.h5");
    for (const std::string& array : plain.names()) {
      const std::vector<float> values = plain.read(array);
      std::vector<Number> half(values.size());
      std::ranges::transform(values, half.begin(), [](float x) { return from_float<Number>(x); });
      array == other ? file.write("/" + array, io::hdf5::Type::fp32, plain.shape(array).extents(),
                                  values.data())
                     : file.write("/" + array, type, plain.shape(array).extents(), half.data());
    }
    file.finish();
    EXPECT_THAT(here.ok("import half.h5 -o back.h5 --config c.toml").err,
                HasSubstr(name + " and fp32, "));
    const auto types = types_of("back.h5");
    EXPECT_EQ(types.size(), 2U);
    EXPECT_EQ(types.count(name), 1U);
    EXPECT_THAT(config_of("back.h5"), HasSubstr("dtype = \"" + name + "\""));
    here.ok("export back.h5 -o again.h5");
    expect_same_arrays(here / "half.h5", here / "again.h5");
    here.ok("prune half.h5 -o pruned.h5 --method magnitude --sparsity 0.9");
    EXPECT_EQ(types_of("pruned.h5"), types);
    here.ok("prune half.h5 -o pruned.h5 --config c.toml --method magnitude --sparsity 0.9");
    EXPECT_EQ(types_of("pruned.h5"), types);
    EXPECT_EQ(config_of("pruned.h5"), config_of("back.h5"));
    EXPECT_EQ(here.ok("eval --json back.h5").json()["val_loss"],
              here.ok("eval --json half.h5 --config c.toml").json()["val_loss"]);
    // A type that the config names stays.
    here.ok("import half.h5 -o back.h5 --config c.toml --set train.dtype=fp32");
    EXPECT_EQ(types_of("back.h5"), types);
    EXPECT_THAT(config_of("back.h5"), HasSubstr("dtype = \"fp32\""));
  };
  check_types(fp16{}, io::hdf5::Type::fp16);
  check_types(bf16{}, io::hdf5::Type::bf16);
  here.ok("import plain.h5 -o back.h5 --config c.toml --dtype bf16");
  const Json rounded = here.run("inspect --json back.h5").json();
  for (const Json& array : rounded["arrays"]) {
    EXPECT_EQ(array["dtype"], "bf16");
  }
  EXPECT_EQ(rounded["arrays"].size(), plain.names().size());
  EXPECT_THAT(config_of("back.h5"), HasSubstr("dtype = \"bf16\""));
  io::PlainWriter writer(here / "large.h5");
  for (const std::string& name : plain.names()) {
    std::vector<float> values = plain.read(name);
    values.back() = name == other ? 1e5F : values.back();
    writer.write(name, plain.shape(name), values);
  }
  writer.commit();
  here.fails("import large.h5 -o no.h5 --config c.toml --dtype fp16", 1,
             other + " has values beyond 65,504");
}

TEST_F(Cli, InfoAndHelp) {
  const Ran info = here.ok("info --json");
  for (const char* key : {"version", "git", "backends", "backend", "mpi", "mpi_cuda", "nccl",
                          "hdf5", "gemm", "cores"}) {
    EXPECT_TRUE(info.json().contains(key)) << key;
  }
  EXPECT_THAT(here.run("info").out, HasSubstr(info.json()["mpi"].get<std::string>()));
  const Ran version = here.ok("--version");
  EXPECT_TRUE(version.out.starts_with("espalier " + info.json()["version"].get<std::string>()))
      << version.out;
  EXPECT_EQ(here.run("info --config-help").out, config::help());
  // docs/config.md equals this text.
  EXPECT_THAT(here.shell("cat '" ESPALIER_SOURCE_DIR "/docs/config.md'").out,
              HasSubstr("```\n" + config::help() + "```\n"))
      << "docs/config.md is out of date: put what `espalier info --config-help` prints there";
  for (const char* command :
       {"", "train", "prune", "inspect", "eval", "sample", "data", "import", "export", "report",
        "info", "plan-communication", "schedule", "codec"}) {
    EXPECT_THAT(here.ok(std::string(command) + " --help").out, HasSubstr("Usage: ")) << command;
  }
}

TEST_F(Cli, ReportOfOneAndOfTwoRuns) {
  here.ok("train c.toml --set pruning.method=none --out dense");
  here.ok("train c.toml --out sparse");
  here.ok("report sparse");
  EXPECT_GT(here.read("sparse/report.html").size(), 10'000U);
  const Ran two = here.ok("report dense sparse -o both.html");
  EXPECT_GT(here.read("both.html").size(), here.read("sparse/report.html").size());
  EXPECT_THAT(two.out, HasSubstr("dense"));
  EXPECT_EQ(here.run("report --table dense sparse").out, two.out);
  here.fails("report dense sparse", 2, "-o");
}

}  // namespace
}  // namespace espalier::cli_test
