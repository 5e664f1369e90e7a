// The real program, from data to report: files and output of each subcommand.
#include <cmath>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/plain_hdf5.h"
#include "io/config/config.h"
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

TEST(Cli, TrainLeavesARunDirectory) {
  const Workplace here;
  const Ran ran = here.run("train c.toml");
  expect_code(ran, 0);
  EXPECT_EQ(ran.out, "");
  EXPECT_NE(ran.err.find("pruned after step 8"), std::string::npos) << ran.err;
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
  expect_code(here.run("train run/config.toml --out again"), 0);
  EXPECT_EQ(here.curve("again", "loss"), losses);
}

/// metrics.jsonl has null for a loss that is not a number, and so has the summary.
TEST(Cli, ALastUpdateThatSpoilsTheWeightsIsAnErrorAndNotSaved) {
  const Workplace here;
  const std::string options =
      "train c.toml --set train.steps=1 --set optimizer.kind=sgd --set optimizer.lr=1e30 "
      "--set optimizer.warmup_steps=0 --set optimizer.clip=0 --set pruning.method=none";
  expect_error(here.run(options), 1, "the validation loss is");
  EXPECT_FALSE(std::filesystem::exists(here / "run/checkpoints/step-000001.h5"));
  EXPECT_FALSE(std::filesystem::exists(here / "run/summary.json"));
}

TEST(Cli, ResumeIsNoBreak) {
  const Workplace here;
  expect_code(here.run("train c.toml --out whole"), 0);
  // Interrupted before and after the pruning, at steps with and without a regular checkpoint.
  expect_code(here.run("train c.toml --out parts --steps 7"), 0);
  EXPECT_FALSE(here.summary("parts")["finished"].get<bool>());
  expect_code(here.run("train c.toml --out parts --steps 13 --resume auto"), 0);
  expect_code(here.run("train c.toml --out parts --resume auto"), 0);
  EXPECT_EQ(here.curve("whole", "loss"), here.curve("parts", "loss"));
  EXPECT_EQ(here.curve("whole", "val_loss"), here.curve("parts", "val_loss"));
  expect_code(here.run("export whole/checkpoints/step-000020.h5 -o whole.h5"), 0);
  expect_code(here.run("export parts/checkpoints/step-000020.h5 -o parts.h5"), 0);
  expect_same_arrays(here / "whole.h5", here / "parts.h5");
  // Resuming after the end is no error and changes nothing.
  expect_code(here.run("train c.toml --out parts --resume auto"), 0);
  EXPECT_EQ(here.curve("parts", "loss").size(), 20U);
}

TEST(Cli, LastNamesTheNewestCheckpoint) {
  const Workplace here;
  const std::string last = "run/checkpoints/last.h5";
  expect_error(here.run("inspect " + last), 1, last);
  expect_code(here.run("train c.toml --steps 7 --set train.checkpoint_every=3"), 0);
  const auto same = [&](const std::string& before, const std::string& after = "") {
    const Ran by_name = here.run(before + "run/checkpoints/step-000007.h5" + after);
    expect_code(by_name, 0);
    EXPECT_EQ(here.run(before + last + after).out, by_name.out) << before;
  };
  same("inspect --json ");
  same("eval ");
  same("sample --tokens 5 --prompt a ");
  expect_code(here.run("codec --checkpoint " + last), 0);  // prints times
  expect_code(here.run("prune " + last + " -o pruned.h5 --method magnitude --sparsity 0.5"), 0);
  expect_code(here.run("export " + last + " -o arrays.h5"), 0);
  expect_code(here.run("train c.toml --out next --init " + last), 0);
  expect_code(here.run("train c.toml --out on --resume " + last), 0);
  EXPECT_EQ(here.curve("on", "loss").size(), 13U);
  // A file of that name is taken as it is.
  here.shell("mv pruned.h5 run/checkpoints/last.h5");
  EXPECT_NE(here.run("inspect --json " + last).out,
            here.run("inspect --json run/checkpoints/step-000007.h5").out);
}

TEST(Cli, EvalIsTheValidationLossOfTheRun) {
  for (const std::string changes : {"", "--set train.dtype=bf16", "--set train.dtype=fp16",
                                    "--set data.kind=chars --set train.micro_batch=2"}) {
    const Workplace here;
    expect_code(here.run("train c.toml " + changes), 0);
    const Ran ran = here.run("eval --json " + kLast);
    expect_code(ran, 0);
    const Json found = ran.json();
    const double loss = here.summary("run")["final_val_loss"].get<double>();
    EXPECT_EQ(found["val_loss"].get<double>(), loss) << changes;
    EXPECT_DOUBLE_EQ(found["perplexity"].get<double>(), std::exp(loss));
    EXPECT_DOUBLE_EQ(found["bits_per_byte"].get<double>(), loss / std::log(2.0));
    EXPECT_EQ(found["predictions"], 2 * 8 * 32);
    const Ran text = here.run("eval " + kLast);
    EXPECT_NE(text.out.find(fmt::format("{:.6f}", loss)), std::string::npos) << text.out;
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

TEST(Cli, InspectsImages) {
  const Workplace here;
  write_images(here, 120);
  const Ran ran = here.run("data inspect images labels --kind images --json");
  expect_code(ran, 0);
  const Json found = ran.json();
  EXPECT_EQ(found["image"], Json({4, 4, 1}));
  EXPECT_EQ(found["classes"], 3);
  EXPECT_EQ(found["train"]["images"], 108);
  EXPECT_EQ(found["validation"]["images"], 12);
  const Ran text = here.run("data inspect images labels --kind images");
  expect_code(text, 0);
  const std::string mean = fmt::format("mean = [{:.6f}]\n", found["mean"][0].get<double>());
  const std::string deviation =
      fmt::format("deviation = [{:.6f}]\n", found["deviation"][0].get<double>());
  EXPECT_NE(text.out.find("[model]\nimage = [4, 4, 1]\n\n[data]\n" + mean + deviation),
            std::string::npos)
      << text.out;
  expect_error(here.run("data inspect images labels --kind images --format cifar10"), 1,
               "not a multiple of 3073");
  expect_code(here.run("train c.toml --set model.kind=mlp --set data.kind=images --set "
                       "'data.train=[\"images\", \"labels\"]' --set data.mean=0.2 --set "
                       "data.deviation=0.3 --set data.crop=1 --set data.order=epochs"),
              0);
  EXPECT_EQ(here.run("eval --json " + kLast).json()["val_loss"],
            here.summary("run")["final_val_loss"]);
  EXPECT_NE(here.run("eval --json --set data.mean=0.3 " + kLast).json()["val_loss"],
            here.summary("run")["final_val_loss"]);
  expect_error(here.run("train c.toml --resume auto --set model.kind=mlp --set data.kind=images "
                        "--set 'data.train=[\"images\", \"labels\"]'"),
               1, "data.mean was [0.2] and is []");
}

TEST(Cli, AnMlpGoesTheSameWay) {
  const Workplace here;
  write_images(here, 120);
  const std::string mlp =
      "--set model.kind=mlp --set 'model.hidden=[16, 16]' --set data.kind=images "
      "--set 'data.train=[\"images\", \"labels\"]' --set optimizer.lr=0.03";
  const Ran ran = here.run("train c.toml " + mlp);
  expect_code(ran, 0);
  EXPECT_NE(ran.err.find(" images/s"), std::string::npos) << ran.err;
  EXPECT_NE(ran.err.find("top-1 "), std::string::npos) << ran.err;
  EXPECT_LT(here.curve("run", "loss").back(), 0.7 * here.curve("run", "loss").front());
  const Ran eval = here.run("eval --json " + kLast);
  expect_code(eval, 0);
  EXPECT_EQ(eval.json()["val_loss"], here.summary("run")["final_val_loss"]);
  EXPECT_EQ(eval.json()["val_top1"], here.summary("run")["final_val_top1"]);
  EXPECT_FALSE(eval.json().contains("val_top5")) << "there are three classes";
  EXPECT_NE(here.run("eval " + kLast).out.find("val_top1"), std::string::npos);
  EXPECT_FALSE(eval.json().contains("perplexity"));
  expect_code(here.run("prune " + kLast + " -o p.h5 --method magnitude --sparsity 0.9"), 0);
  expect_code(here.run("export p.h5 -o plain.h5"), 0);
  expect_code(here.run("import plain.h5 -o back.h5 --config run/config.toml"), 0);
  EXPECT_EQ(here.run("eval --json back.h5").json()["val_loss"],
            here.run("eval --json p.h5").json()["val_loss"]);
  expect_error(here.run("sample p.h5 --prompt a"), 1, "classifies images");
  for (const std::string method : {"wanda", "sparsegpt"}) {
    expect_code(here.run("prune " + kLast +
                         " -o p.h5 --sparsity 0.5 --calibration images "
                         "--calibration labels --method " +
                         method),
                0);
    EXPECT_LT(here.run("eval --json p.h5").json()["val_loss"], 1.0) << method;
  }
}

TEST(Cli, ASignalEndsTheStepAndSaves) {
  const Workplace here;
  for (const std::string signal : {"TERM", "INT", "USR1"}) {
    const Ran ran =
        here.shell("timeout --preserve-status -s " + signal +
                   " 0.5 " ESPALIER_PROGRAM
                   " train c.toml --resume none --set train.steps=1000000 --set train.eval_every=0 "
                   "--set train.checkpoint_every=0 --set run.trace=false --out " +
                   signal);
    expect_code(ran, 4);
    EXPECT_NE(ran.err.find("by a signal"), std::string::npos) << ran.err;
    const auto steps = here.summary(signal)["steps"].get<int64_t>();
    EXPECT_GT(steps, 0);
    EXPECT_EQ(here.curve(signal, "loss").size(), static_cast<size_t>(steps));
    expect_code(here.run(fmt::format("inspect {}/checkpoints/step-{:06}.h5", signal, steps)), 0);
  }
}

TEST(Cli, PruneKeepsTheLargestAndInspectCountsThem) {
  const Workplace here;
  expect_code(here.run("train c.toml --set pruning.method=none"), 0);
  const Ran pruned = here.run("prune " + kLast + " -o p.h5 --method magnitude --sparsity 0.75");
  expect_code(pruned, 0);
  EXPECT_NE(pruned.out.find("25.00 %"), std::string::npos) << pruned.out;
  const Ran inspected = here.run("inspect --json p.h5");
  expect_code(inspected, 0);
  const Json found = inspected.json();
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
  expect_code(here.run("export " + kLast + " -o before.h5"), 0);
  expect_code(here.run("export p.h5 -o after.h5"), 0);
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
  expect_code(here.run("train c.toml --set pruning.method=none --out next --init p.h5"), 0);
  EXPECT_NEAR(here.summary("next")["sparsity"].get<double>(), 0.75, 1e-12);
  expect_error(here.run("train c.toml --out other --resume p.h5"), 1, "--init");
}

/// A round of a lottery ticket (docs/pruning.md).
TEST(Cli, ARunRewindsToAnEarlierStepWithMasksOfTheTrainedWeights) {
  const Workplace here;
  const std::string dense = "train c.toml --set pruning.method=none ";
  expect_code(here.run(dense + "--out rewind --steps 5"), 0);
  expect_code(here.run(dense + "--out round-0 --resume rewind"), 0);
  expect_code(here.run("prune round-0 -o masks.h5 --method magnitude --sparsity 0.5"), 0);
  const std::string pruned =
      "train c.toml --set pruning.method=file --set pruning.file=masks.h5 --set pruning.at_step=5 ";
  const std::string rewound = pruned + "--out round-1 --resume rewind";
  expect_error(here.run(rewound), 1, "--accept-changes masks");
  expect_code(here.run(rewound + " --accept-changes masks"), 0);
  EXPECT_NEAR(here.summary("round-1")["sparsity"].get<double>(), 0.5, 1e-4);
  // Weights, moments, learning rate and order of data are those of step 5.
  expect_code(here.run(pruned + "--out whole"), 0);
  const std::vector<double> whole = here.curve("whole", "loss");
  ASSERT_EQ(whole.size(), 20U);
  EXPECT_EQ(here.curve("round-1", "loss"), std::vector<double>(whole.begin() + 5, whole.end()));
}

TEST(Cli, AConfigWithoutAModelTrainsTheNetworkOfInit) {
  const Workplace here;
  expect_code(here.run("train c.toml"), 0);
  std::string text = here.read("run/config.toml");  // has every key
  const size_t model = text.find("[model]");
  const std::string section = text.substr(model, text.find("\n[", model) - model);
  EXPECT_NE(section.find("width"), std::string::npos) << section;
  text.erase(model, section.size());
  here.write("rest.toml", text);
  expect_error(here.run("train rest.toml --out next --init missing.h5"), 1, "missing.h5");
  expect_code(here.run("train rest.toml --out next --init " + kLast), 0);
  EXPECT_NE(here.read("next/config.toml").find(section), std::string::npos);
  // So does a resumed run, which does not need --init again.
  expect_code(here.run("train rest.toml --out parts --steps 2 --init " + kLast), 0);
  expect_code(here.run("train rest.toml --out parts --steps 3 --resume auto"), 0);
  expect_code(here.run("train rest.toml --out parts --resume parts/checkpoints/last.h5"), 0);
  EXPECT_EQ(here.curve("parts", "loss"), here.curve("next", "loss"));
  // A key of the command line replaces the checkpoint's.
  expect_code(here.run("train rest.toml --out other --set model.dropout=0.1 --init " + kLast), 0);
  EXPECT_NE(here.read("other/config.toml").find("dropout = 0.1"), std::string::npos);
}

TEST(Cli, PruneTakesCheckpointsOfEveryType) {
  for (const std::string dtype : {"bf16", "fp16"}) {
    const Workplace here;
    expect_code(here.run("train c.toml --set train.dtype=" + dtype), 0);
    expect_code(here.run("prune " + kLast + " -o p.h5 --method magnitude --sparsity 0.9"), 0);
    expect_code(here.run("eval p.h5"), 0);
    const io::CheckpointReader before(here / kLast);
    const io::CheckpointReader pruned(here / "p.h5");
    for (const std::string& name : pruned.names()) {
      EXPECT_EQ(pruned.info(name).dtype, before.info(name).dtype) << name;
    }
    expect_code(here.run("train c.toml --out next --init p.h5 --set train.dtype=" + dtype), 0);
  }
}

/// The plan of a run from pruned weights, which prunes nothing itself, has the bytes of the run.
TEST(Cli, ADryRunKnowsTheMasksOfInit) {
  const Workplace here;
  expect_code(here.run("train c.toml --set pruning.sparsity=0.9"), 0);
  const std::string next = "train c.toml --out next --set pruning.method=none --init " + kLast;
  expect_code(here.run(next), 0);
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
  EXPECT_EQ(refused.err.find("prune from the start"), std::string::npos) << refused.err;
}

TEST(Cli, PruneKnowsAllMethods) {
  const Workplace here;
  expect_code(here.run("train c.toml --set pruning.method=none --steps 1"), 0);
  const std::string in = "run/checkpoints/step-000001.h5";
  for (const std::string how :
       {"random --sparsity 0.5 --seed 3", "nm --n 2 --m 4", "block --block 8 --sparsity 0.5",
        "magnitude --sparsity 0.5 --scope layer --exclude 'blocks.0.*'"}) {
    const Ran ran = here.run("prune " + in + " -o p.h5 --method " + how);
    expect_code(ran, 0);
    EXPECT_NE(ran.out.find("50.00 %"), std::string::npos) << how << "\n" << ran.out;
    const Ran eval = here.run("eval --json p.h5");
    expect_code(eval, 0);
    EXPECT_TRUE(std::isfinite(eval.json()["val_loss"].get<double>())) << how;
  }
}

TEST(Cli, ExportAndImportAreInverse) {
  const Workplace here;
  expect_code(here.run("train c.toml"), 0);
  expect_code(here.run("export " + kLast + " -o plain.h5"), 0);
  expect_code(here.run("import plain.h5 -o back.h5 --config c.toml"), 0);
  expect_code(here.run("export back.h5 -o again.h5"), 0);
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
  expect_code(here.run("prune plain.h5 -o bare.h5 --method magnitude --sparsity 0.9"), 0);
  const Json bare = here.run("inspect --json bare.h5").json();
  expect_code(
      here.run("prune plain.h5 -o full.h5 --config c.toml --method magnitude --sparsity 0.9"), 0);
  const Json full = here.run("inspect --json full.h5").json();
  EXPECT_EQ(bare["kept_parameters"], full["kept_parameters"]);
  EXPECT_LT(bare["kept_parameters"], was["kept_parameters"]);
  expect_error(here.run("eval bare.h5"), 1, "--config");
  EXPECT_EQ(here.run("eval --json bare.h5 --config c.toml").json()["val_loss"],
            here.run("eval --json full.h5").json()["val_loss"]);
}

TEST(Cli, InfoAndHelp) {
  const Workplace here;
  const Ran info = here.run("info --json");
  expect_code(info, 0);
  for (const char* key : {"version", "git", "backends", "backend", "mpi", "mpi_cuda", "nccl",
                          "hdf5", "gemm", "cores"}) {
    EXPECT_TRUE(info.json().contains(key)) << key;
  }
  EXPECT_NE(here.run("info").out.find(info.json()["mpi"].get<std::string>()), std::string::npos);
  const Ran version = here.run("--version");
  expect_code(version, 0);
  EXPECT_TRUE(version.out.starts_with("espalier " + info.json()["version"].get<std::string>()))
      << version.out;
  EXPECT_EQ(here.run("info --config-help").out, config::help());
  // docs/config.md equals this text.
  const Ran page = here.shell("cat '" ESPALIER_SOURCE_DIR "/docs/config.md'");
  EXPECT_NE(page.out.find("```\n" + config::help() + "```\n"), std::string::npos)
      << "docs/config.md is out of date: put what `espalier info --config-help` prints there";
  for (const char* command :
       {"", "train", "prune", "inspect", "eval", "sample", "data", "import", "export", "report",
        "info", "plan-communication", "schedule", "codec"}) {
    const Ran help = here.run(std::string(command) + " --help");
    expect_code(help, 0);
    EXPECT_NE(help.out.find("Usage: "), std::string::npos) << command;
  }
}

TEST(Cli, ReportOfOneAndOfTwoRuns) {
  const Workplace here;
  expect_code(here.run("train c.toml --set pruning.method=none --out dense"), 0);
  expect_code(here.run("train c.toml --out sparse"), 0);
  const Ran one = here.run("report sparse");
  expect_code(one, 0);
  EXPECT_GT(here.read("sparse/report.html").size(), 10'000U);
  const Ran two = here.run("report dense sparse -o both.html");
  expect_code(two, 0);
  EXPECT_GT(here.read("both.html").size(), here.read("sparse/report.html").size());
  EXPECT_NE(two.out.find("dense"), std::string::npos) << two.out;
  EXPECT_EQ(here.run("report --table dense sparse").out, two.out);
  expect_error(here.run("report dense sparse"), 2, "-o");
}

}  // namespace
}  // namespace espalier::cli_test
