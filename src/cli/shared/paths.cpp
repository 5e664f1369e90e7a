#include "src/cli/shared/paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/stored_tokenizer.h"
#include "io/files/folders.h"
#include "io/files/raw_file.h"
#include "src/cli/shared/console.h"
#include "src/core/error.h"
#include "src/train/checkpoint/run_directory.h"

namespace espalier::cli {
namespace {

namespace fs = std::filesystem;

/// Whether the file begins as HDF5 files do.
bool begins_as_hdf5(const std::string& path) {
  constexpr std::string_view kBegin = "\x89HDF\r\n\x1a\n";
  std::array<char, kBegin.size()> begin{};
  io::RawFile file = io::RawFile::open(path);
  return file.read(0, begin.size(), begin.data()) &&
         std::string_view(begin.data(), begin.size()) == kBegin;
}

/// Without links, as far as it exists: "new/../in" is "in".
fs::path real_path(const fs::path& path) {
  std::error_code missing;
  return fs::weakly_canonical(fs::absolute(path), missing);
}

/// Of a run directory; commands may write its report.html.
bool is_file_of_run(const std::string& name) {
  return name == ".lock" || name == "supervise.jsonl" ||
         std::ranges::find(train::kRunFiles, name) != train::kRunFiles.end();
}

void check_no_checkpoint(const fs::path& out, const fs::path& written) {
  const auto run = train::run_of_checkpoints(written);
  check(!run,
        "{} lies among the checkpoints of the run {}, where a file without the optimizer's state "
        "could not be resumed and would hide others; name another output, outside of the run",
        out.string(), run ? run->string() : "");
}

}  // namespace

std::string checkpoint_path(const std::string& path) {
  if (path.empty()) {
    return path;
  }
  const fs::path named(path);
  fs::path file = io::checkpoint_named(named);
  if (file == named && file.filename() == "last.h5" && launched_rank() == 0) {
    const auto beside = io::checkpoints_in(file.has_parent_path() ? file.parent_path() : ".");
    if (!beside.empty()) {
      print_note(fmt::format("{} is a file of its own: the newest checkpoint there is {}",
                             file.string(), beside.back().filename().string()));
    }
  }
  return file.string();
}

std::string resume_path(const std::string& path) {
  return path == "auto" || path == "none" ? path : checkpoint_path(path);
}

std::string tokenizer_path(const std::string& path) {
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    const fs::path file = fs::path(path) / name;
    std::error_code unknown;
    if (fs::is_regular_file(file, unknown)) {
      return file.string();
    }
  }
  return checkpoint_path(path);
}

void name_checkpoints(io::Config& config) {
  config.train.teacher = checkpoint_path(config.train.teacher);
  config.pruning.file = checkpoint_path(config.pruning.file);
}

io::Tokenizer open_tokenizer(const std::string& path) {
  if (!begins_as_hdf5(path)) {
    return io::Tokenizer::from_file(path);
  }
  auto tokenizer = io::tokenizer_of(io::CheckpointReader(path).meta().extra, path);
  check(tokenizer.has_value(),
        "{} holds no tokenizer; name a tokenizer.json or tokenizer.model, or import the model from "
        "a directory that has one",
        path);
  return *std::move(tokenizer);
}

bool is_run(const fs::path& folder) {
  return io::path_exists(folder / "manifest.json") || io::path_exists(folder / "config.toml");
}

void check_output(const fs::path& out, std::span<const std::string> inputs) {
  io::check_replaceable(out);
  const fs::path written = real_path(out);
  std::error_code missing;
  for (const std::string& in : inputs) {
    check(!fs::equivalent(in, written, missing),
          "{} is the input {}, which would be replaced; name another output file with -o",
          out.string(), in);
  }
  check_no_checkpoint(out, written);
  const fs::path folder = written.parent_path();
  check(!is_run(folder) || !is_file_of_run(out.filename().string()),
        "{} is a file of the run {}, which would be replaced; name another output file with -o",
        out.string(), folder.string());
  io::check_folder(out.parent_path());
}

void check_output_folder(const fs::path& out) {
  check_no_checkpoint(out, real_path(out));
  io::check_folder(out);
}

}  // namespace espalier::cli
