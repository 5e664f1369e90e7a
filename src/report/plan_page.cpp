#include "src/report/plan_page.h"

#include "src/report/html_page.h"
#include "src/report/timeline.h"

namespace espalier::report {

std::string render_plan(const nlohmann::ordered_json& plan, const PlannedStep& step) {
  constexpr size_t kSpans = 24'000;
  const nlohmann::ordered_json data{{"plan", plan},
                                    {"timeline", timeline_of_step({.spans = step.spans,
                                                                   .lanes = step.lanes,
                                                                   .label = "predicted step",
                                                                   .length = step.length},
                                                                  kSpans)}};
  return assemble_page(
      {.title = "Espalier plan",
       .body = "plan.html",
       .script = "plan.js",
       .json = data.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace)});
}

}  // namespace espalier::report
