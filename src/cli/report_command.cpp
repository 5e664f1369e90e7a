// espalier report RUN_DIR…: writes a page with curves, memory, bytes and timeline, and one table.
#include "src/cli/commands.h"
#include "src/cli/shared/console.h"
#include "src/cli/shared/options.h"
#include "src/cli/shared/paths.h"
#include "src/cli/shared/weights_file.h"
#include "src/config/parse.h"
#include "src/core/error.h"
#include "src/report/report.h"

namespace espalier::cli {
namespace {

namespace fs = std::filesystem;

struct ReportArguments {
  std::vector<std::string> runs;
  std::string out;
  bool table_only = false;
  const CLI::App* command = nullptr;
};

/// The data files of a run; none if its config cannot be read, which the page says.
std::vector<std::string> data_of(const fs::path& run) {
  try {
    const io::DataConfig data = config::load_saved(run / "config.toml").data;
    std::vector<std::string> files = data.train;
    files.insert(files.end(), data.validation.begin(), data.validation.end());
    return files;
  } catch (const Failure&) {
    return {};
  }
}

int report(const ReportArguments& arguments) {
  const std::vector<fs::path> directories(arguments.runs.begin(), arguments.runs.end());
  if (arguments.table_only) {
    check_used(*arguments.command, {{"--out", false, "without --table, which writes no page"}});
    print(report::summary_table(report::read_runs(directories)));
    return 0;
  }
  if (arguments.out.empty() && directories.size() > 1) {
    throw Usage("several runs have no common directory for the page; name it with -o report.html");
  }
  const fs::path page =
      arguments.out.empty() ? directories.front() / "report.html" : fs::path(arguments.out);
  check_output(page, {});
  for (const fs::path& run : directories) {
    check_output(page, data_of(run));
  }
  const std::vector<report::RunData> runs = report::read_runs(directories);
  report::write_report(runs, page);
  print_note(fmt::format("wrote {}", page.string()));
  print(report::summary_table(runs));
  return 0;
}

}  // namespace

void register_report(CLI::App& app, Action& chosen) {
  auto arguments = std::make_shared<ReportArguments>();
  CLI::App* command = app.add_subcommand(
      "report", "Write a page with curves, memory, bytes and timeline of runs; print a table");
  command->add_option("runs", arguments->runs, "run directories; the first is the baseline")
      ->required();
  command->add_option("-o,--out", arguments->out, "the page (one run: RUN/report.html)");
  command->add_flag("--table", arguments->table_only, "print the table, write no page");
  arguments->command = command;
  command->callback([arguments, &chosen] { chosen = [arguments] { return report(*arguments); }; });
}

}  // namespace espalier::cli
