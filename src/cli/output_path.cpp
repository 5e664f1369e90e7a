#include "src/cli/output_path.h"

#include <algorithm>
#include <string_view>

#include "io/files/folders.h"
#include "src/core/error.h"
#include "src/train/run/run_directory.h"

namespace espalier::cli {
namespace {

namespace fs = std::filesystem;

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
