// Input of commands that is refused or named: numbers that are not finite, options that it
// does not use, names of checkpoints, places of outputs, data from another folder.
#include <unistd.h>

#include <cmath>
#include <limits>
#include <set>
#include <sstream>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/plain_hdf5.h"
#include "io/hdf5/hdf5.h"
#include "tests/support/program.h"

namespace espalier::cli_input_test {
namespace {

namespace fs = std::filesystem;

const std::string kBad = "blocks.1.mlp.expand.weight";

/// `from` as a checkpoint in which an element of kBad is `value`.
void damage(const fs::path& from, const fs::path& to, float value) {
  const io::CheckpointReader reader(from);
  io::CheckpointWriter writer(to);
  writer.write_meta(reader.meta());
  bool found = false;
  for (const std::string& name : reader.names()) {
    const io::StoredParameter info = reader.info(name);
    std::vector<float> values(static_cast<size_t>(info.nnz));
    reader.values(name, Tensor(values.data(), DType::fp32, Shape{info.nnz}));
    if (name == kBad) {
      values[values.size() / 2] = value;
      found = true;
    }
    const std::vector<uint8_t> index = reader.index(name);
    writer.write_parameter({.name = name,
                            .shape = info.shape,
                            .encoding = info.encoding,
                            .nnz = info.nnz,
                            .values = Tensor(values.data(), DType::fp32, Shape{info.nnz}),
                            .index = index});
  }
  ASSERT_TRUE(found);
  writer.commit();
}

using CliInput = ProgramTest;

TEST_F(CliInput, NoCommandAcceptsWeightsThatAreNotFinite) {
  here.ok("train c.toml --set pruning.method=none");
  const std::string sparsity = " --sparsity 0.5 -o out.h5 --method ";
  const std::string calibrated = " --calibration text.txt --samples 4";
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    damage(here / kLast, here / "bad.h5", value);
    for (const std::string& command :
         {std::string("eval bad.h5"), std::string("sample bad.h5 --prompt a"),
          std::string("export bad.h5 -o out.h5"), std::string("export bad.h5 -o folder"),
          "prune bad.h5" + sparsity + "magnitude", "prune bad.h5" + sparsity + "random",
          "prune bad.h5" + sparsity + "block", std::string("prune bad.h5 -o out.h5 --method nm"),
          "prune bad.h5" + sparsity + "wanda" + calibrated,
          "prune bad.h5" + sparsity + "sparsegpt" + calibrated,
          std::string("train c.toml --out new --init bad.h5"),
          std::string("train c.toml --out new --set 'train.teacher=\"bad.h5\"'")}) {
      const Ran ran = here.run(command);
      EXPECT_EQ(ran.code, 1) << command << ran.err;
      EXPECT_THAT(ran.err, HasSubstr(kBad)) << command;
      EXPECT_FALSE(here.has("out.h5")) << command;
    }
    EXPECT_THAT(here.ok("inspect bad.h5").err, HasSubstr(kBad));
    EXPECT_EQ(here.run("inspect bad.h5 --json").json()["not_finite"].size(), 1U);
  }
}

/// Writes an array, each element as a number of the type.
template <class Number>
void write(io::hdf5::File& file, const std::string& name, const Shape& shape, io::hdf5::Type type,
           const std::vector<float>& values) {
  std::vector<Number> numbers(values.size());
  std::ranges::transform(values, numbers.begin(), [](float x) { return static_cast<Number>(x); });
  file.write("/" + name, type, shape.extents(), numbers.data());
}

using Type = io::hdf5::Type;

/// The cause is the file, not a training.
TEST_F(CliInput, NoPlainArraysThatAreNotFinite) {
  here.ok("train c.toml --set pruning.method=none");
  here.ok("export " + kLast + " -o plain.h5");
  for (const std::string bad : {"embedding.token", "blocks.0.attention.qkv.weight"}) {
    for (const double value : {std::nan(""), 1e300}) {
      const io::PlainReader reader(here / "plain.h5");
      auto file = io::hdf5::File::create(here / "bad.h5", "bad.h5");
      for (const std::string& name : reader.names()) {
        const std::vector<float> values = reader.read(name);
        std::vector<double> numbers(values.begin(), values.end());
        numbers[numbers.size() / 3] = name == bad ? value : numbers[numbers.size() / 3];
        file.write("/" + name, Type::fp64, reader.shape(name).extents(), numbers.data());
      }
      file.finish();
      const std::string cause =
          std::isnan(value) ? "a NaN in "
                            : "an infinity, or a number beyond 3.40e38, the largest of fp32, in ";
      for (const std::string command :
           {"import bad.h5 --config c.toml -o out.h5", "eval bad.h5 --config c.toml",
            "prune bad.h5 -o out.h5 --method magnitude --sparsity 0.5",
            "train c.toml --out new --init bad.h5"}) {
        here.fails(command, 1, "bad.h5: the file holds " + cause + bad);
        EXPECT_FALSE(here.has("out.h5")) << command;
      }
      EXPECT_THAT(here.run("inspect bad.h5").err, HasSubstr(bad));
    }
  }
}

/// Prefixes, masks, names by shape: eval and prune with --config read what import reads.
TEST_F(CliInput, CommandsReadPlainFilesAsImportDoes) {
  here.ok("train c.toml --set pruning.method=none");
  here.ok("export " + kLast + " -o plain.h5");
  const io::PlainReader plain(here / "plain.h5");
  const std::string prune = " --method magnitude --sparsity 0.7 -o ";
  const std::string odd = "blocks.1.mlp.expand.";
  const auto write_file = [&](const std::string& prefix, const auto& mask_name, bool renamed) {
    auto file = io::hdf5::File::create(here / "in.h5", "in.h5");
    for (const std::string& name : plain.names()) {
      const Shape shape = plain.shape(name);
      std::vector<float> values = plain.read(name);
      const bool other = renamed && name == odd + "weight";
      write<float>(file, prefix + (other ? odd + "kernel" : name), shape, Type::fp32, values);
      if (!mask_name("").empty() && name.starts_with("blocks.") && shape.rank() == 2) {
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] = i % 3 == 0 ? 0.0F : 1.0F;
        }
        write<uint8_t>(file, mask_name(name), shape, Type::uint8, values);
      }
    }
    file.finish();
  };
  const auto none = [](const std::string&) { return std::string(); };
  const auto check_same = [&](const std::string& what) {
    SCOPED_TRACE(what);
    here.ok("import in.h5 -o imported.h5 --config c.toml");
    const auto loss = here.run("eval --json imported.h5").json()["val_loss"];
    const Ran ran = here.ok("eval --json in.h5 --config c.toml");
    EXPECT_EQ(ran.json()["val_loss"], loss);
    here.ok("prune in.h5 --config c.toml" + prune + "a.h5");
    here.ok("prune imported.h5" + prune + "b.h5");
    for (const std::string file : {"a", "b"}) {
      here.ok("export " + file + ".h5 -o " + file + "-plain.h5");
    }
    EXPECT_EQ(here.read("a-plain.h5"), here.read("b-plain.h5"));
    EXPECT_EQ(here.ok("sample in.h5 --config c.toml --prompt a --tokens 8").out,
              here.ok("sample imported.h5 --prompt a --tokens 8").out);
    return ran.err;
  };
  write_file("", none, false);
  check_same("as exported");
  write_file("model.", none, false);
  EXPECT_THAT(check_same("a prefix"), HasSubstr("this program below model"));
  write_file("", none, true);
  EXPECT_THAT(check_same("by shape"), HasSubstr(odd + "kernel is " + odd + "weight by its shape"));
  // train --init reads the parameters' own names only.
  here.fails("train c.toml --out new --init in.h5", 1, "import it first (espalier import in.h5 -o");
  write_file(
      "", [](const std::string& name) { return name + "_mask"; }, false);
  EXPECT_THAT(check_same("masks"), HasSubstr("masks of 8 parameters are in the file"));
  write_file(
      "weights.", [](const std::string& name) { return "masks." + name; }, false);
  check_same("a tree of masks");
  // A mask of no array.
  auto file = io::hdf5::File::create(here / "loose.h5", "loose.h5");
  for (const std::string& name : plain.names()) {
    const std::vector<float> values = plain.read(name);
    write<float>(file, name, plain.shape(name), Type::fp32, values);
    if (name == odd + "weight") {
      write<uint8_t>(file, "mlp0_mask", plain.shape(name), Type::uint8,
                     std::vector<float>(values.size(), 1.0F));
    }
  }
  file.finish();
  for (const std::string command :
       {"import loose.h5 --config c.toml -o no.h5", "eval loose.h5 --config c.toml",
        "train c.toml --out new --init loose.h5"}) {
    here.fails(command, 1, "mlp0_mask is named like a mask, and no array has its name");
  }
  here.fails("prune loose.h5" + prune + "no.h5 --config c.toml", 1,
             "import it first (espalier import loose.h5 -o OUT.h5 --config c.toml --map FILE)");
  EXPECT_FALSE(here.has("no.h5"));
}

TEST_F(CliInput, PruneReadsConvolutionsAsImportDoes) {
  here.write("net.toml", R"([model]
kind = "vision"
network = ["conv 4 3", "max 2", "conv 6 3", "max 2"]
image = [8, 8, 2]
classes = 3
[data]
kind = "images"
)");
  io::PlainWriter writer(here / "in.h5");
  float next = 1;
  for (const auto& [name, shape] :
       std::vector<std::pair<std::string, Shape>>{{"0.conv.weight", {4, 2, 3, 3}},
                                                  {"0.conv.bias", {4}},
                                                  {"2.conv.weight", {6, 4, 3, 3}},
                                                  {"2.conv.bias", {6}},
                                                  {"classifier.weight", {3, 24}},
                                                  {"classifier.bias", {3}}}) {
    std::vector<float> values(static_cast<size_t>(shape.count()));
    std::ranges::generate(values, [&] { return next++; });
    writer.write(name, shape, values);
  }
  writer.commit();
  const std::string prune = " --method magnitude --sparsity 0.5 -o ";
  here.ok("import in.h5 -o imported.h5 --config net.toml");
  here.ok("prune imported.h5" + prune + "a.h5");
  here.ok("prune in.h5 --config net.toml" + prune + "b.h5");
  here.ok("export a.h5 -o a-plain.h5");
  here.ok("export b.h5 -o b-plain.h5");
  EXPECT_EQ(here.read("a-plain.h5"), here.read("b-plain.h5"));
}

/// `prune` has no --dtype to advise.
TEST_F(CliInput, PrunedValuesBeyondTheTypeOfTheFile) {
  here.ok("train c.toml --steps 1 --set pruning.method=none");
  here.ok("export run/checkpoints/step-000001.h5 -o plain.h5");
  const io::PlainReader plain(here / "plain.h5");
  const std::string large = "blocks.0.mlp.expand.weight";
  io::PlainWriter writer(here / "large.h5");
  for (const std::string& name : plain.names()) {
    std::vector<float> values = plain.read(name);
    for (size_t i = 0; i < values.size() && name == large; ++i) {
      values[i] = (60'000.0F + static_cast<float>(i * 7919 % 5000)) * (i % 2 == 0 ? 1.0F : -1.0F);
    }
    writer.write(name, plain.shape(name), values);
  }
  writer.commit();
  here.ok("import large.h5 -o half.h5 --config c.toml --dtype fp16");
  here.fails(
      "prune half.h5 -o no.h5 --method sparsegpt --sparsity 0.5 --calibration text.txt --samples 4",
      1,
      large +
          " has values beyond 65,504, the largest of fp16, or infinite ones; choose a "
          "--method that changes no values");
  EXPECT_FALSE(here.has("no.h5"));
}

/// Advice that, when followed, gives the weights.
TEST_F(CliInput, TransposedPlainMatricesAreNamedAsMapLines) {
  here.write("net.toml", R"([model]
kind = "mlp"
hidden = [8, 6]
classes = 3
[data]
kind = "images"
)");
  const std::vector<std::pair<std::string, Shape>> arrays{
      {"hidden.0.weight", {8, 16}}, {"hidden.0.bias", {8}},        {"hidden.1.weight", {6, 8}},
      {"hidden.1.bias", {6}},       {"classifier.weight", {3, 6}}, {"classifier.bias", {3}}};
  const auto write_file = [&](const std::string& to, const std::set<std::string>& transposed) {
    io::PlainWriter writer(here / to);
    float next = 1;
    for (const auto& [name, shape] : arrays) {
      std::vector<float> values(static_cast<size_t>(shape.count()));
      std::ranges::generate(values, [&] { return next++; });
      if (!transposed.contains(name)) {
        writer.write(name, shape, values);
        continue;
      }
      std::vector<float> turned;
      for (int64_t c = 0; c < shape[1]; ++c) {
        for (int64_t r = 0; r < shape[0]; ++r) {
          turned.push_back(values[static_cast<size_t>(r * shape[1] + c)]);
        }
      }
      writer.write(name, {shape[1], shape[0]}, turned);
    }
    writer.commit();
  };
  write_file("right.h5", {});
  here.ok("import right.h5 -o in.h5 --config net.toml");
  here.ok("export in.h5 -o right-plain.h5");
  const std::set<std::string> all{"hidden.0.weight", "hidden.1.weight", "classifier.weight"};
  for (const std::set<std::string>& turned :
       std::vector<std::set<std::string>>{{"hidden.0.weight"}, {"hidden.1.weight"}, all}) {
    write_file("turned.h5", turned);
    const Ran ran = here.run("import turned.h5 -o no.h5 --config net.toml");
    EXPECT_EQ(ran.code, 1);
    EXPECT_THAT(ran.err, Not(HasSubstr("reshape")));
    std::string map;
    std::istringstream lines(ran.err);
    for (std::string line; std::getline(lines, line);) {
      map += line.starts_with("  ") ? line + "\n" : "";
    }
    here.write("names.map", map);
    here.ok("import turned.h5 -o out.h5 --config net.toml --map names.map");
    here.ok("export out.h5 -o out-plain.h5");
    EXPECT_EQ(here.read("out-plain.h5"), here.read("right-plain.h5")) << map;
    here.fails("prune turned.h5 --config net.toml -o no.h5 --method magnitude --sparsity 0.5", 1,
               "this command has no --map: import it first (espalier import turned.h5 -o");
  }
}

/// Every option of `prune` with every method: it changes the result, or it is refused by name.
TEST_F(CliInput, PruneUsesEveryOptionOrRefusesIt) {
  here.ok("train c.toml --set pruning.method=none");
  const std::vector<std::pair<std::string, std::string>> options{{"--sparsity", "0.75"},
                                                                 {"--scope", "layer"},
                                                                 {"--exclude", "'*.expand.weight'"},
                                                                 {"--seed", "9"},
                                                                 {"--samples", "3"}};
  int refused = 0;
  for (const std::string method : {"magnitude", "random", "nm", "block", "wanda", "sparsegpt"}) {
    const bool reads = method == "wanda" || method == "sparsegpt";
    const auto masks = [&](const std::string& option, const std::string& value) {
      std::string command = "prune " + kLast + " -o out.h5 --method " + method;
      command += method == "nm" || option == "--sparsity" ? "" : " --sparsity 0.5";
      command += reads ? " --calibration text.txt" : "";
      command += option.empty() ? "" : " " + option + " " + value;
      return here.run(command);
    };
    expect_code(masks("", ""), 0);
    const auto before = here.run("inspect out.h5 --json").json()["arrays"];
    here.ok("export out.h5 -o before.h5");
    const std::string dense = here.read("before.h5");
    for (const auto& [option, value] : options) {
      const Ran ran = masks(option, value);
      if (ran.code == 2) {
        EXPECT_THAT(ran.err, HasSubstr(option + " has no effect")) << method;
        ++refused;
        continue;
      }
      expect_code(ran, 0);
      here.ok("export out.h5 -o after.h5");
      EXPECT_NE(here.read("after.h5"), dense) << method << " ignores " << option;
    }
    if (!reads) {
      expect_error(masks("--calibration", "text.txt"), 2, "--calibration has no effect");
    }
  }
  EXPECT_GE(refused, 10);
  // No option of `prune` is missing in this test.
  const std::string help = here.run("prune --help").out;
  std::set<std::string> known{"--help", "--out",    "--method", "--calibration",
                              "--set",  "--config", "--samples"};
  for (const auto& [option, value] : options) {
    known.insert(option);
  }
  for (size_t at = help.find("--"); at != std::string::npos; at = help.find("--", at + 2)) {
    const size_t end = help.find_first_not_of("-abcdefghijklmnopqrstuvwxyz", at);
    const std::string option = help.substr(at, end - at);
    if (option.size() > 2 && help[at - 1] != '`' && option != "--init") {
      EXPECT_TRUE(known.contains(option)) << option;
    }
  }
}

/// The text of --method is that of pruning.method: the same masks, and the same errors.
TEST_F(CliInput, PruneReadsTheOptionsOfMethods) {
  here.ok("train c.toml --set pruning.method=none");
  const std::string prune = "prune " + kLast + " -o out.h5 --method ";
  const auto result = [&](const std::string& how) {
    here.ok(prune + how);
    here.ok("export out.h5 -o plain.h5");
    return here.read("plain.h5");
  };
  const std::string groups = result("nm");
  EXPECT_EQ(result("nm:2:4"), groups);
  EXPECT_NE(result("nm:1"), groups);
  EXPECT_EQ(result("nm:1:8"), result("nm:m=8:n=1"));
  const std::string blocks = result("block --sparsity 0.5");
  EXPECT_EQ(result("block:16 --sparsity 0.5"), blocks);
  EXPECT_NE(result("block:edge=4 --sparsity 0.5"), blocks);
  for (const auto& [method, error] : std::vector<std::pair<std::string, std::string>>{
           {"nm:1:8:3",
            "pruning.method = \"nm:1:8:3\": \"3\" is no option of \"nm\"; available: n, m"},
           {"nm:n=x", "is a string, expected an integer"},
           {"nm:4:4", "pruning.method = \"nm\": n = 4 is not below m = 4"},
           {"magnitude:2", "\"2\" is no option of \"magnitude\"; available: none"},
           {"block:0", "pruning.method:edge = 0 is out of range"},
           {"nn:1:8", "unknown pruning method \"nn\""}}) {
    here.fails(prune + method, 1, error);
    if (method != "nn:1:8") {
      here.fails("train c.toml --out other --set pruning.method=" + method, 1, error);
    }
  }
}

TEST_F(CliInput, OptionsWithoutEffectAreErrors) {
  here.ok("train c.toml");
  for (const auto& [command, option] :
       Rows{{"export " + kLast + " -o x.h5 --shard-size 1GB", "--shard-size"},
            {"export " + kLast + " -o x.h5 --sparse", "--sparse"},
            {"eval " + kLast + " --stride 3", "--stride"},
            {"sample " + kLast + " --prompt a --temperature 0 --top-k 3", "--top-k"},
            {"sample " + kLast + " --prompt a --temperature 0 --top-k 3", "--top-k"},
            {"data inspect text.txt --token-type uint32", "--token-type"},
            {"data inspect text.txt --format cifar10", "--format"},
            {"report run --table -o page.html", "--out"},
            {"schedule gpipe --in-flight 3", "--in-flight"},
            {"schedule gpipe --virtual-stages 3", "--virtual-stages"},
            {"schedule 1f1b --every 3", "--every"},
            {"plan c.toml --machine m.toml --rounds 2", "--rounds"},
            {"plan --calibrate -o m.toml --ranks 2", "--ranks"}}) {
    here.fails(command, 2, option + " has no effect");
  }
}

TEST_F(CliInput, AConfigWithoutANetworkIsSaid) {
  here.write("n.toml", "[data]\ntrain = [\"text.txt\"]\n[train]\nsteps = 1\n");
  EXPECT_THAT(here.run("train n.toml --dry-run").err, HasSubstr("no [model]"));
  EXPECT_THAT(here.run("sweep n.toml --dry-run --over train.seed=1,2").err,
              HasSubstr("no [model]"));
  EXPECT_THAT(here.run("train c.toml --dry-run").err, Not(HasSubstr("[model]")));
}

TEST_F(CliInput, ADryRunNamesKeysWithoutEffect) {
  const std::string listed = here.run("train c.toml --dry-run --set optimizer.offload=true").out;
  EXPECT_THAT(listed, HasSubstr("without effect in this run: optimizer.offload (only on a GPU)"));
  // A second replica may use it; a single one does not.
  const std::string codec = "train c.toml --dry-run --set parallel.codec=bf16";
  EXPECT_THAT(here.run(codec).out, Not(HasSubstr("without effect")));
  EXPECT_THAT(here.run(codec + " --ranks 1").out, HasSubstr("parallel.codec"));
}

TEST_F(CliInput, APlanNamesKeysWithoutEffect) {
  const std::string plan = "plan c.toml --machine " ESPALIER_SOURCE_DIR "/machines/xeon-hosts.toml";
  EXPECT_THAT(here.run(plan + " --set parallel.codec=bf16").out,
              HasSubstr("without effect in this layout: parallel.codec (only"));
  EXPECT_THAT(here.run(plan + " --set parallel.codec=bf16 --ranks 2").out,
              Not(HasSubstr("without effect")));
}

TEST_F(CliInput, ASweepOverAKeyWithoutEffectIsSaid) {
  const std::string sweep = "sweep c.toml --dry-run --over optimizer.offload=true,false";
  EXPECT_THAT(here.run(sweep).err, HasSubstr("--over optimizer.offload changes nothing"));
  EXPECT_EQ(here.run("sweep c.toml --dry-run --over train.seed=1,2").err, "");
}

/// A run's directory, its folder of checkpoints, and last.h5 name the newest checkpoint everywhere.
TEST_F(CliInput, NamesOfCheckpoints) {
  here.ok("train c.toml");
  for (const std::string name :
       {"run", "run/", "run/checkpoints", "run/checkpoints/last.h5", "run/last.h5"}) {
    EXPECT_EQ(here.run("eval --json " + name).json()["step"], 20) << name;
    EXPECT_EQ(here.run("inspect --json " + name).json()["step"], 20) << name;
    here.ok("sample --prompt the --tokens 2 " + name);
    here.ok("export -o x.h5 " + name);
    here.ok("prune -o x.h5 --method magnitude --sparsity 0.9 " + name);
    here.ok("codec --seconds 0 --codec bf16 --checkpoint " + name);
    here.ok("train c.toml --resume none --steps 1 --out new --init " + name);
    here.ok("train c.toml --resume none --steps 1 --out new --set 'train.teacher=\"" + name +
            "\"'");
    here.ok(
        "train c.toml --resume none --steps 9 --out new --set "
        "pruning.method=file --set 'pruning.file=\"" +
        name + "\"'");
  }
  here.shell("mkdir empty; mkdir hub; echo {} > hub/config.json");
  for (const std::string command :
       {"eval empty", "inspect empty", "train c.toml --out new --init empty",
        "train c.toml --out new --set 'train.teacher=\"empty\"'"}) {
    here.fails(command, 1, "empty is a folder without checkpoints");
  }
  here.fails("eval hub", 1, "espalier import");
  // A file of this name among the checkpoints would hide them: it is said.
  here.shell(
      "cp run/checkpoints/step-000005.h5 run/checkpoints/last.h5 2>/dev/null || "
      "cp run/checkpoints/step-000015.h5 run/checkpoints/last.h5");
  EXPECT_THAT(here.run("eval run/checkpoints/last.h5").err, HasSubstr("step-000020.h5"));
}

/// Relative data paths of a checkpoint are those of its training, wherever it is evaluated.
TEST_F(CliInput, DataAreFoundFromElsewhere) {
  here.ok("train c.toml");
  const auto loss = here.run("eval --json run").json()["val_loss"];
  const Ran below = here.shell("mkdir below; cd below; " ESPALIER_PROGRAM " eval --json ../run");
  EXPECT_EQ(below.json()["val_loss"], loss);
  EXPECT_THAT(below.json()["data"][0].get<std::string>(), HasSubstr("text.txt"));
  // Other data of this name are not those of the training.
  here.write("below/text.txt", std::string(9000, 'a') + here.read("text.txt"));
  EXPECT_EQ(here.shell("cd below; " ESPALIER_PROGRAM " eval --json ../run").json()["val_loss"],
            loss);
  // A checkpoint without its run still knows the working directory.
  here.shell("cp " + kLast + " below/lone.h5");
  EXPECT_EQ(here.shell("cd below; " ESPALIER_PROGRAM " eval --json lone.h5").json()["val_loss"],
            loss);
  // A whole tree that was moved.
  here.shell("mkdir moved; cp -r run text.txt moved");
  here.shell("mv text.txt away.txt");
  EXPECT_EQ(
      here.shell("cd below; " ESPALIER_PROGRAM " eval --json ../moved/run").json()["val_loss"],
      loss);
  // Validation data alone are enough, and content that differs is said.
  here.ok("eval --json run --set 'data.train=[]' --set 'data.validation=[\"away.txt\"]'");
  here.write("text.txt", here.read("away.txt").substr(100));
  EXPECT_THAT(here.run("eval run").err, HasSubstr("is not the data of the training run"));
}

TEST_F(CliInput, OutputsNeverLandAmongCheckpoints) {
  here.ok("train c.toml");
  here.shell("ln -s run/checkpoints soft; ln -s run r2; mkdir -p other/checkpoints");
  const std::vector<std::string> outs{"run/checkpoints/plain.h5",
                                      "run/checkpoints/last.h5",
                                      "soft/plain.h5",
                                      "r2/checkpoints/a/b.h5",
                                      "run/../run/checkpoints/x.h5",
                                      "run/checkpoints/set-aside-1/x.h5"};
  for (const std::string& out : outs) {
    for (const std::string command :
         {"export run", "prune run --method magnitude --sparsity 0.9", "report run",
          "data tokenize text.txt", "plan --calibrate --quick",
          "import run/checkpoints/step-000020.h5 --config c.toml"}) {
      const Ran ran = here.run(command + " -o " + out);
      EXPECT_EQ(ran.code, 1) << command << out;
      EXPECT_THAT(ran.err, HasSubstr("among the checkpoints")) << command << " " << out;
    }
    here.fails("schedule gpipe --svg " + out, 1, "among the checkpoints");
  }
  for (const std::string command :
       {"train c.toml --out ", "sweep c.toml --over train.seed=1 --out "}) {
    EXPECT_EQ(here.run(command + "run/checkpoints/x").code, 1) << command;
  }
  here.fails("export run -o run/checkpoints", 1, "among the checkpoints");
  here.ok("export run -o other/checkpoints/step-000003.h5");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(here / "run/checkpoints")) {
    names.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(names, ::testing::Each(::testing::StartsWith("step-")));
}

TEST_F(CliInput, PlacesOfOutputs) {
  here.ok("train c.toml");
  here.shell("ln -s nowhere dangling; mkdir folder");
  const std::string prune = "prune run --method magnitude --sparsity 0.9 -o ";
  here.fails(prune + "dangling/x.h5", 1, "dangling is a link to nowhere");
  here.fails(prune + "text.txt/x.h5", 1, "text.txt is a file");
  here.fails(prune + "folder", 1, "folder is a folder; name a file");
  here.fails("train c.toml --out dangling", 1, "dangling is a link to nowhere");
  here.fails("train c.toml --out text.txt", 1, "text.txt is a file");
  here.fails("train c.toml --out text.txt/run", 1, "text.txt is a file");
  here.fails("sweep c.toml --over train.seed=1 --out text.txt", 1, "text.txt is a file");
  here.fails("sweep c.toml --over train.seed=1 --out run", 1, "run is the directory of a run");
  here.fails("train c.toml --out ''", 2, "empty");
  if (::geteuid() != 0) {
    here.shell("mkdir closed; chmod 555 closed");
    here.fails(prune + "closed/x.h5", 1, "closed cannot be written");
  }
}

TEST_F(CliInput, ASmallStackIsSaid) {
  expect_error(here.shell("ulimit -s 64; " ESPALIER_PROGRAM " train c.toml --dry-run"), 1,
               "ulimit -s 8192");
}

TEST_F(CliInput, NumbersThatDoNotFit) {
  for (const std::string number : {"99999999999999999999", "-99999999999999999999"}) {
    here.fails("train c.toml --dry-run --set train.steps=" + number, 1, "9223372036854775807");
    here.write("n.toml", "[train]\nsteps = " + number + "\n");
    const Ran file = here.run("train n.toml --dry-run");
    EXPECT_EQ(file.code, 1);
    EXPECT_THAT(file.err, Not(HasSubstr("string")));
  }
  here.fails("train c.toml --dry-run --set train.steps=1e3", 1, "write 1000");
  here.fails("train c.toml --dry-run --set optimizer.lr=nan", 1, "optimizer.lr");
  here.fails("train c.toml --dry-run --set optimizer.lr=-inf", 1, "optimizer.lr");
  here.fails("train c.toml --dry-run --set train.steps=007", 1, "leading zeros");
}

}  // namespace
}  // namespace espalier::cli_input_test
