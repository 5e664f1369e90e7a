// espalier plan: its page, its trace, and runs beside their prediction.
#include <algorithm>

#include "io/checkpoint/checkpoint.h"
#include "tests/support/program.h"

namespace espalier::cli_planner_test {
namespace {

using Json = nlohmann::json;

constexpr const char* kMachine = R"(name = "test & co"
source = "invented"
[device]
bandwidth = 1e10
memory = 1e9
[device.peak]
fp32 = 1e11
[[level]]
name = "node"
ranks = 8
latency_us = 3
bandwidth = 1e9
)";

const std::string kPlan = "plan c.toml --machine m.toml ";

struct Place : Workplace {
  Place() { write("m.toml", kMachine); }
};

/// The data of a page's script.
Json data_of(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = page.find(open) + open.size();
  return Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

/// Of two processes: sums may differ in their last bits.
void expect_same_plans(const Json& one, const Json& other) {
  ASSERT_EQ(one.size(), other.size());
  for (size_t i = 0; i < one.size(); ++i) {
    for (const char* key : {"ranks", "stages", "schedule", "micro_batch", "layers", "memory"}) {
      EXPECT_EQ(one[i][key], other[i][key]) << i;
    }
    const auto step = one[i]["step_ms"].get<double>();
    EXPECT_NEAR(step, other[i]["step_ms"].get<double>(), 1e-9 * step) << i;
  }
}

TEST(PlanPage, HasTheObjectOfJson) {
  const Place here;
  const Json plan =
      here.ok(kPlan + "--ranks 1..4 --search -o plan.html --trace plan.json --json").json();
  const std::string page = here.read("plan.html");
  const Json data = data_of(page);
  EXPECT_EQ(data["plan"], plan);
  EXPECT_FALSE(plan["refused"].empty());

  const Json alone = here.run(kPlan + "--ranks 1..4 --search --json").json();
  expect_same_plans(alone["plans"], plan["plans"]);
  EXPECT_FALSE(alone.contains("scaling"));

  ASSERT_EQ(plan["scaling"].size(), 2U);
  EXPECT_EQ(plan["scaling"][0]["name"], "pruned");
  EXPECT_EQ(plan["scaling"][1]["name"], "dense");
  for (const Json& point : plan["scaling"][0]["points"]) {
    double fastest = 1e300;
    for (const Json& one : plan["plans"]) {
      fastest = one["ranks"] == point["ranks"] ? std::min(fastest, one["step_ms"].get<double>())
                                               : fastest;
    }
    EXPECT_EQ(point["step_ms"], fastest);
  }

  // The drawn step and the trace are those of the best layout.
  const Json& best = plan["plans"][plan["best"]["plan"].get<size_t>()];
  EXPECT_EQ(plan["best"]["by_rank"].size(), best["stages"]);
  const double step_us = best["step_ms"].get<double>() * 1e3;
  EXPECT_NEAR(data["timeline"]["windows"][0]["length"].get<double>(), step_us, 0.1);
  double end = 0;
  size_t events = 0;
  const Json trace = Json::parse(here.read("plan.json"));
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") {
      end = std::max(end, event["ts"].get<double>() + event["dur"].get<double>());
      ++events;
    }
  }
  EXPECT_NEAR(end, step_us, 2e-3);
  EXPECT_EQ(data["timeline"]["windows"][0]["spans"].size(), events);

  EXPECT_THAT(page, Not(HasSubstr("test & co"))) << "text of files is escaped";
  EXPECT_THAT(page, Not(HasSubstr("{{"))) << "a part of the page was not filled in";
  for (const char* way_out : {" src=", "<link", "@import", "url(//", "fetch(", "https://"}) {
    EXPECT_THAT(page, Not(HasSubstr(way_out))) << way_out;
  }
}

TEST(PlanPage, TextHasARowALayout) {
  const Place here;
  const Json plan = here.run(kPlan + "--ranks 1..4 --json").json();
  const Ran text = here.ok(kPlan + "--ranks 1..4 -o plan.html");
  EXPECT_THAT(text.err, HasSubstr("wrote plan.html"));
  ASSERT_EQ(plan["plans"].size(), 3U);
  for (const Json& one : plan["plans"]) {
    EXPECT_THAT(text.out, HasSubstr(fmt::format("{:.2f}", one["step_ms"].get<double>())));
  }
  expect_same_plans(data_of(here.read("plan.html"))["plan"]["plans"], plan["plans"]);
}

TEST(PlanOfARun, StandsBesideItsMeasurements) {
  const Place here;
  here.ok("train c.toml --set run.operation_times=true --set train.checkpoint_every=0");
  const Json plan = here.ok("plan run --machine m.toml --json -o run/plan.html").json();
  EXPECT_EQ(data_of(here.read("run/plan.html"))["plan"], plan);
  ASSERT_EQ(plan["plans"].size(), 1U);
  EXPECT_EQ(plan["plans"][0]["ranks"], 1);
  EXPECT_EQ(plan["comparison"]["run"], "run");
  std::map<std::string, Json> rows;
  std::map<std::string, Json> operations;
  for (const Json& row : plan["comparison"]["rows"]) {
    (row["kind"] == "part" ? rows : operations)[row["name"]] = row;
  }
  std::vector<double> steps = here.curve("run", "step_ms");
  // The second half of the steps since the run was pruned.
  const std::vector<double> sparsity = here.curve("run", "sparsity");
  const auto pruned = std::ranges::find(sparsity, sparsity.back()) - sparsity.begin();
  steps.erase(steps.begin(), steps.begin() + pruned + (std::ssize(steps) - pruned) / 2);
  std::ranges::sort(steps);
  const double median = steps[steps.size() / 2];
  EXPECT_NEAR(rows["step"]["measured"].get<double>(), median, 1e-9);
  EXPECT_EQ(rows["step"]["predicted"], plan["plans"][0]["step_ms"]);
  EXPECT_NEAR(rows["step"]["ratio"].get<double>(),
              plan["plans"][0]["step_ms"].get<double>() / median, 1e-9);
  EXPECT_TRUE(rows["compute"]["measured"].is_number());
  EXPECT_TRUE(operations["gemm"]["measured"].is_number());
  const Json summary = here.summary("run");
  EXPECT_EQ(rows["memory peak"]["predicted"], summary["planned_peak"]["all"]);
  EXPECT_EQ(rows["memory peak"]["measured"], summary["memory"]["ranks"][0]["all"]["peak"]);
  EXPECT_EQ(rows["checkpoint"]["measured"],
            std::filesystem::file_size(io::checkpoints_in(here / "run/checkpoints").back()));
  EXPECT_EQ(rows["checkpoint"]["predicted"], plan["checkpoints"]["bytes"]);
  const Ran text = here.ok("plan run --machine m.toml");
  const std::string words = fmt::format("measured in run: medians over {} steps", steps.size());
  EXPECT_THAT(text.out, HasSubstr(words));
}

TEST(PlanTry, OrdersTheBestLayoutsByMeasuredTime) {
  const Place here;
  const std::string options = "--search --try 3 --quick --set sparse.storage=auto ";
  const Json plan = here.ok(kPlan + options + "--json -o plan.html").json();
  EXPECT_EQ(data_of(here.read("plan.html"))["plan"], plan);
  ASSERT_GE(plan["plans"].size(), 3U);
  EXPECT_EQ(plan["best"]["plan"], 0);
  double last = 0;
  for (size_t i = 0; i < plan["plans"].size(); ++i) {
    const Json& measured = plan["plans"][i]["measured_ms"];
    EXPECT_EQ(measured.is_number(), i < 3) << i;
    EXPECT_GT(i < 3 ? measured.get<double>() : 1, i < 3 ? last : 0);
    last = i < 3 ? measured.get<double>() : last;
  }
  // The settings give the layout.
  std::string settings;
  for (const Json& setting : plan["settings"]) {
    settings += " --set '" + setting.get<std::string>() + "'";
  }
  EXPECT_NE(settings, "");
  const Json again = here.run(kPlan + "--json --set sparse.storage=auto" + settings).json();
  expect_same_plans(again["plans"], Json::array({plan["plans"][0]}));
  EXPECT_EQ(again["plans"][0]["storage"], plan["plans"][0]["storage"]);

  const Ran text = here.ok(kPlan + options);
  EXPECT_THAT(text.out, HasSubstr("measured, ms"));
  EXPECT_THAT(text.out, HasSubstr("settings of the best layout, over 1 ranks: --set"));
  EXPECT_FALSE(here.has("run"));
}

TEST(PlanPage, ErrorsNameTheFixAndWriteNothing) {
  const Place here;
  std::filesystem::create_directories(here / "empty");
  std::filesystem::create_directories(here / "half");
  std::filesystem::copy(here / "c.toml", here / "half/config.toml");
  std::string small = kMachine;
  small.replace(small.find("1e9"), 3, "1e6");
  here.write("small.toml", small);
  const std::string outputs = " -o p.html --trace t.json ";
  for (const auto& [arguments, words] :
       Rows{{"none.toml --machine m.toml" + outputs, "none.toml"},
            {"c.toml --machine none.toml" + outputs, "none.toml"},
            {"empty --machine m.toml" + outputs, "without config.toml"},
            {"half --machine m.toml" + outputs, "summary.json is missing"},
            {"half --machine m.toml --ranks 2" + outputs, "leave --ranks and --search out"},
            {"c.toml --machine m.toml --trace t.json -o c.toml", "c.toml is the input"},
            {"c.toml --machine m.toml -o p.html --trace m.toml", "m.toml is the input"},
            {"c.toml --machine m.toml --trace t.json -o text.txt", "text.txt is the input"},
            {"c.toml --machine m.toml -o p.html --trace ./p.html", "name the same file"},
            {"c.toml --machine m.toml --ranks 16" + outputs, "16 ranks need as many devices"},
            {"c.toml --machine m.toml --search --try 2 --ranks 2" + outputs,
             "--ranks 2 with --try needs a launch of as many ranks, and this one has 1"},
            {"c.toml --machine m.toml --search --try 2 --tensor 2" + outputs, "without --tensor"},
            {"c.toml --machine small.toml" + outputs, "--trace needs a layout that fits"},
            {"c.toml --machine m.toml -o p.html --trace half", "half"}}) {
    here.fails("plan " + arguments, 1, words);
    EXPECT_FALSE(here.has("p.html") || here.has("t.json")) << arguments;
  }
  EXPECT_EQ(here.read("c.toml"), Workplace::config());
  const Ran large = here.run("plan c.toml --machine small.toml");
  expect_error(large, 1, "no planned layout fits");
  EXPECT_THAT(large.out, HasSubstr("does not fit"));
  EXPECT_THAT(large.out, HasSubstr("To fit, with what a rank would then need"));
  here.fails("plan c.toml --calibrate -o p.html", 1, "leave the config");
  here.fails("plan --calibrate -o p.html --trace t.json", 1, "leave --trace out");
  EXPECT_FALSE(here.has("p.html"));
}

}  // namespace
}  // namespace espalier::cli_planner_test
