#pragma once
// The text of the files that make the pages; defined by a source that embed.cmake writes at build
// time.
#include <string_view>

namespace espalier::report {

/// "report.html", "report.css", "charts.js", ... Throws Bug for a file that is not embedded.
std::string_view page_part(std::string_view name);

}  // namespace espalier::report
