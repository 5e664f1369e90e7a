// Files that are no files, or not those that are meant, in every place where a subcommand takes
// one: named and refused at once, with exit code 1, in a run directory left out with a note.
#include "tests/support/program.h"

namespace espalier::cli_hostile_test {
namespace {

namespace fs = std::filesystem;

/// A second is enough for each command; machines of tests are shared.
constexpr const char* kAtOnce = "timeout 20 " ESPALIER_PROGRAM " ";

/// Commands with a file of each kind; FILE stands for its name.
const std::vector<std::string>& commands() {
  static const std::vector<std::string> all{
      "train FILE",
      "train c.toml --init FILE",
      "train c.toml --resume FILE",
      "train c.toml --set 'data.train=[\"FILE\"]'",
      "train c.toml --set 'data.validation=[\"FILE\"]'",
      "train c.toml --set data.kind=tokens --set 'data.train=[\"FILE\"]'",
      "train c.toml --set model.kind=mlp --set data.kind=images --set 'data.train=[\"FILE\"]'",
      "train c.toml --set pruning.method=file --set pruning.file=FILE --set pruning.at_step=0",
      "eval FILE",
      "sample FILE --prompt a",
      "inspect FILE",
      "export FILE -o out.h5",
      "import FILE -o out.h5 --config c.toml",
      "prune FILE -o out.h5 --method magnitude --sparsity 0.5",
      "codec --file FILE --codec fp16 --seconds 0",
      "codec --checkpoint FILE --codec fp16 --seconds 0",
      "data tokenize FILE -o out.bin",
      "data tokenize text.txt -o out.bin --tokenizer FILE",
      "data inspect FILE --kind tokens"};
  return all;
}

std::string with_file(std::string command, const std::string& name) {
  for (size_t at = command.find("FILE"); at != std::string::npos; at = command.find("FILE")) {
    command.replace(at, 4, name);
  }
  return command;
}

using CliHostile = ProgramTest;

TEST_F(CliHostile, EveryCommandNamesWhatIsNoFile) {
  here.shell("mkfifo pipe && mkdir folder && ln -s pipe link");
  for (const std::string& command : commands()) {
    for (const std::string name : {"pipe", "folder", "link", "/dev/zero", "/dev/null"}) {
      const Ran ran = here.shell(kAtOnce + with_file(command, name) + " </dev/null");
      SCOPED_TRACE(with_file(command, name));
      expect_error(ran, 1, name);
      EXPECT_THAT(ran.err,
                  ::testing::AnyOf(HasSubstr("not an ordinary file"), HasSubstr("cannot be opened"),
                                   HasSubstr("is a folder without checkpoints")));
    }
  }
}

TEST_F(CliHostile, EveryCommandNamesAFileThatIsTooShort) {
  here.write("empty", "");
  here.write("byte", "\x89");
  for (const std::string& command : commands()) {
    for (const std::string name : {"empty", "byte"}) {
      SCOPED_TRACE(with_file(command, name));
      const Ran ran = here.shell(kAtOnce + with_file(command, name));
      // A byte is a text, and an empty config is the default one, without data.
      const bool is_text = name == "byte" && command == "data tokenize FILE -o out.bin";
      if (is_text) {
        expect_code(ran, 0);
      } else {
        expect_error(ran, 1, "");
      }
    }
  }
}

TEST_F(CliHostile, ATruncatedFileIsRefusedAtAnyLength) {
  here.ok("train c.toml --steps 1 --set model.layers=1 --set model.width=8");
  const std::string whole = here.read("run/checkpoints/step-000001.h5");
  for (size_t part = 0; part < 40; ++part) {
    here.write("cut.h5", whole.substr(0, whole.size() * part / 40));
    expect_error(here.shell(std::string(kAtOnce) + "inspect cut.h5"), 1, "cut.h5");
  }
  const std::string config = Workplace::config();
  for (size_t length = 0; length < config.size(); length += 7) {
    here.write("cut.toml", config.substr(0, length));
    const int code = here.shell(std::string(kAtOnce) +
                                "train cut.toml --dry-run --set 'data.train=[\"text.txt\"]'")
                         .code;
    EXPECT_TRUE(code == 0 || code == 1) << length << ": " << code;
  }
}

TEST_F(CliHostile, AnOutputThatIsNoFileIsNotReplaced) {
  here.ok("train c.toml --steps 1 --set model.layers=1 --set model.width=8");
  here.shell(
      "mkfifo pipe.h5 && ln -s pipe.h5 link.h5 && echo old >target && ln -s target linked.h5");
  const std::string in = "run/checkpoints/step-000001.h5";
  for (const std::string& command :
       {"export " + in, "prune " + in + " --method magnitude --sparsity 0.5",
        std::string("data tokenize text.txt"), std::string("report run")}) {
    for (const std::string name : {"pipe.h5", "link.h5"}) {
      SCOPED_TRACE(command + " -o " + name);
      expect_error(here.shell(kAtOnce + command + " -o " + name), 1,
                   name + " is not an ordinary file");
      EXPECT_TRUE(fs::is_fifo(here / name));
    }
  }
  here.ok("export " + in + " -o linked.h5");
  EXPECT_EQ(here.read("target"), "old\n");
}

/// A run whose files are read by `report` only.
void write_run(const Workplace& here) {
  fs::create_directory(here / "run");
  here.write("run/config.toml", "[train]\nsteps = 3\n");
  here.write("run/metrics.jsonl", "{\"step\":1,\"loss\":2.5}\n");
  here.write("run/summary.json", "{\"finished\":true,\"final_val_loss\":1.5}");
  here.write("run/trace.json", "{\"traceEvents\":[]}");
  here.write("run/pipeline-measured.svg", "<svg></svg>");
  here.write("run/pipeline-predicted.svg", "<svg></svg>");
}

TEST_F(CliHostile, AReportLeavesOutWhatIsNoFileOfTheRun) {
  here.write("secret", "<svg>a secret of the reader</svg>");
  for (const std::string file :
       {"config.toml", "metrics.jsonl", "summary.json", "trace.json", "pipeline-measured.svg"}) {
    for (const std::string replace :
         {"mkfifo run/", "mkdir run/", "ln -s ../secret run/", "ln -s /dev/zero run/"}) {
      here.shell("rm -rf run");
      write_run(here);
      fs::remove(here / ("run/" + file));
      here.shell(replace + file);
      SCOPED_TRACE(replace + file);
      here.shell_ok(std::string(kAtOnce) + "report run");
      const std::string page = here.read("run/report.html");
      EXPECT_THAT(page, HasSubstr(file + " is "));
      EXPECT_THAT(page, HasSubstr("left out"));
      EXPECT_THAT(page, Not(HasSubstr("a secret of the reader")));
    }
  }
  // A link within the run directory is one of its files.
  here.shell("rm -rf run");
  write_run(here);
  here.shell("mv run/summary.json run/a.json && ln -s a.json run/summary.json");
  EXPECT_THAT(here.shell_ok(std::string(kAtOnce) + "report run").out, HasSubstr("1.5000"));
}

TEST_F(CliHostile, JsonOfManyLevelsIsNoStackOverflow) {
  for (const std::string file : {"metrics.jsonl", "summary.json", "trace.json"}) {
    here.shell("rm -rf run");
    write_run(here);
    const std::string many(200'000, '[');
    here.write("run/" + file,
               "{\"step\":1,\"grid\":{\"a\":" + many + std::string(200'000, ']') + "}}");
    SCOPED_TRACE(file);
    here.shell_ok(std::string(kAtOnce) + "report run");
  }
  // A resumed run reads its summary and its metrics.
  here.ok("train c.toml --out r --steps 5");
  here.write("r/summary.json",
             "{\"a\":" + std::string(200'000, '[') + std::string(200'000, ']') + "}");
  here.ok("train c.toml --out r --steps 6 --resume auto");
}

TEST_F(CliHostile, ATomlOfManyLevelsIsNoStackOverflow) {
  std::string dots = "a";
  for (int i = 0; i < 100'000; ++i) {
    dots += ".a";
  }
  const std::string many(100'000, '[');
  for (const std::string& text : {dots + " = 1\n", "[" + dots + "]\n", "a = " + many + "\n"}) {
    here.write("deep.toml", text);
    expect_error(here.shell(std::string(kAtOnce) + "train deep.toml"), 1, "deep.toml");
    here.shell("rm -rf run");
    write_run(here);
    here.write("run/config.toml", text);
    here.shell_ok(std::string(kAtOnce) + "report run");
  }
}

TEST_F(CliHostile, AHugeConfigIsNotRead) {
  here.shell("truncate -s 100G huge.toml");
  expect_error(here.shell(std::string(kAtOnce) + "train huge.toml"), 1, "more than");
}

}  // namespace
}  // namespace espalier::cli_hostile_test
