#include "tests/support/program.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace espalier {

nlohmann::json Ran::json() const { return nlohmann::json::parse(out); }

Workplace::Workplace() {
  std::string name = (std::filesystem::temp_directory_path() / "espalier-cli-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    throw std::runtime_error("no temporary folder");
  }
  folder_ = name;
  write("text.txt", text(12'000));
  write("c.toml", config());
}

Workplace::~Workplace() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

Ran Workplace::run(const std::string& arguments) const {
  return shell("timeout 120 " ESPALIER_PROGRAM " " + arguments);
}

Ran Workplace::shell(const std::string& command) const {
  const std::string line = "cd '" + folder_.string() + "' && (" + command + ") >.out 2>.err";
  const int status = std::system(line.c_str());  // NOLINT(cert-env33-c): the test is a shell user
  return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          .out = read(".out"),
          .err = read(".err")};
}

Ran Workplace::ok(const std::string& arguments) const {
  SCOPED_TRACE("espalier " + arguments);
  const Ran ran = run(arguments);
  expect_code(ran, 0);
  return ran;
}

Ran Workplace::shell_ok(const std::string& command) const {
  SCOPED_TRACE(command);
  const Ran ran = shell(command);
  expect_code(ran, 0);
  return ran;
}

void Workplace::fails(const std::string& arguments, int code, const std::string& words) const {
  SCOPED_TRACE("espalier " + arguments);
  expect_error(run(arguments), code, words);
}

void Workplace::write(const std::string& name, const std::string& content) const {
  std::ofstream(folder_ / name, std::ios::binary) << content;
}

std::string Workplace::read(const std::string& name) const {
  std::ifstream file(folder_ / name, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

std::vector<double> Workplace::curve(const std::string& run, const char* key) const {
  std::vector<double> values;
  std::istringstream lines(read(run + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto object = nlohmann::json::parse(line);
    if (object.contains(key)) {
      values.push_back(object[key].get<double>());
    }
  }
  return values;
}

nlohmann::json Workplace::summary(const std::string& run) const {
  return nlohmann::json::parse(read(run + "/summary.json"));
}

std::string Workplace::text(size_t bytes) {
  const char* words[] = {"a",   "tree", "pruned", "flat",  "grows", "along",
                         "the", "wall", "and",    "bears", "sweet", "fruit."};
  std::string out;
  uint32_t state = 1;
  size_t word = 0;
  while (out.size() < bytes) {
    state = state * 1664525U + 1013904223U;
    word = (word + 1 + (state >> 30U)) % std::size(words);
    out += words[word];
    out += word == 11 ? "\n" : " ";
  }
  return out;
}

std::string Workplace::config() {
  return R"([model]
layers = 2
heads = 2
width = 32
context = 32

[data]
kind = "bytes"
train = ["text.txt"]

[train]
steps = 20
global_batch = 8
eval_every = 10
eval_batches = 2
checkpoint_every = 5
keep_checkpoints = 9

[optimizer]
lr = 3e-3
warmup_steps = 5

[pruning]
method = "magnitude"
sparsity = 0.8
at_step = 8

[sparse]
storage = "dense"  # "auto" is a choice by time

[parallel]
check_every = 4

[run]
out = "run"
threads = 1
)";
}

void expect_code(const Ran& ran, int code) {
  EXPECT_EQ(ran.code, code) << "stdout: " << ran.out << "\nstderr: " << ran.err;
}

void expect_error(const Ran& ran, int code, const std::string& words) {
  expect_code(ran, code);
  EXPECT_NE(ran.err.find("espalier: error: "), std::string::npos) << ran.err;
  EXPECT_NE(ran.err.find(words), std::string::npos) << "expected: " << words << "\n" << ran.err;
}

}  // namespace espalier
