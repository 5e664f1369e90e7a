#include "src/report/html_page.h"

#include "src/core/error.h"
#include "src/report/page_parts.h"

namespace espalier::report {
namespace {

/// JSON that may stand inside a <script> element: nothing in it can end the element or open a
/// comment.
std::string script_safe(const std::string& value) {
  std::string text;
  for (const char c : value) {
    switch (c) {
      case '<':
        text += "\\u003c";
        break;
      case '>':
        text += "\\u003e";
        break;
      case '&':
        text += "\\u0026";
        break;
      default:
        text += c;
    }
  }
  return text;
}

}  // namespace

/// Replaces each "{{part}}" of the frame; parts are not searched again.
std::string assemble_page(const PageContent& content) {
  std::string_view frame = page_part("page.html");
  std::string page;
  while (true) {
    const size_t open = frame.find("{{");
    page += frame.substr(0, open);
    if (open == std::string_view::npos) {
      return page;
    }
    const size_t close = frame.find("}}", open);
    require(close != std::string_view::npos, "page.html must close each {{");
    const std::string_view name = frame.substr(open + 2, close - open - 2);
    if (name == "data") {
      page += script_safe(content.json);
    } else if (name == "title") {
      page += content.title;
    } else {
      page += page_part(name == "body" ? content.body : name == "script" ? content.script : name);
    }
    frame.remove_prefix(close + 2);
  }
}

}  // namespace espalier::report
