#pragma once
// Assembles a self-contained HTML page: the frame that all pages share (page.html) with the style,
// the charts, a body, the script that fills it, and the data of that script.
#include <string>
#include <string_view>

namespace espalier::report {

struct PageContent {
  std::string_view title;
  std::string_view body;    ///< name of an embedded file (page_parts.h)
  std::string_view script;  ///< likewise
  std::string json;         ///< text of one JSON value in ASCII
};

std::string assemble_page(const PageContent& content);

}  // namespace espalier::report
