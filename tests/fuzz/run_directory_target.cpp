// A run directory: config.toml, metrics.jsonl, summary.json, trace.json and the two pictures of a
// pipeline, separated by zero bytes; the report of it, and metrics as a resumed run reads them.
#include <unistd.h>

#include <array>
#include <fstream>
#include <optional>

#include "io/run/metrics.h"
#include "src/core/error.h"
#include "src/report/report.h"
#include "tests/fuzz/fuzz.h"

namespace espalier::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr std::array kFiles{"config.toml", "metrics.jsonl",          "summary.json",
                            "trace.json",  "pipeline-predicted.svg", "pipeline-measured.svg"};

/// Removed when the program ends.
struct Folder {
  fs::path path = fs::temp_directory_path() / fmt::format("espalier-fuzz-run-{}", ::getpid());
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
};

void read(Input input) {
  static const Folder folder;
  static std::array<std::optional<std::string>, kFiles.size()> written;
  const std::vector<Input> parts = split(input, 0, kFiles.size());
  for (size_t i = 0; i < kFiles.size(); ++i) {
    if (written[i] == text_of(parts[i])) {
      continue;  // an input mostly changes one of the files
    }
    written[i] = text_of(parts[i]);
    std::ofstream file(folder.path / kFiles[i], std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(parts[i].data()), std::ssize(parts[i]));
  }
  const std::vector<report::RunData> runs = report::read_runs(std::array{folder.path});
  report::render_report(runs);
  report::summary_table(runs);
  io::read_metrics(folder.path / "metrics.jsonl");
}

const Registration kTarget({"run_directory", read});

}  // namespace
}  // namespace espalier::fuzz
