// The report: run directories, complete or broken, to a page and a table.
#include "src/report/report.h"

#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "src/report/headline.h"
#include "src/report/plan_page.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"

namespace espalier::report::report_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// The data that the page's script reads.
json data_of(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = page.find(open) + open.size();
  return json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

class ReportTest : public ::testing::Test {
 protected:
  void write(const fs::path& file, const std::string& text) const {
    fs::create_directories((root_ / file.string()).parent_path());
    std::ofstream(root_ / file.string(), std::ios::binary) << text;
  }

  /// `loss`: of the evaluation at step 40.
  static std::string metrics(int first, int last, double loss = 3.96,
                             double allreduce_bytes = 1000) {
    std::string text;
    for (int step = first; step <= last; ++step) {
      json line = json::parse(R"({"lr": 1e-3, "grad_norm": 1.0, "step_ms": 100.0, "p2p_bytes": 0,
          "comm_bytes_sent": 1000})");
      line["step"] = step;
      line["loss"] = 5.0 - 0.001 * step;
      line["tokens_per_s"] = 20000.0 + step;
      line["allreduce_bytes"] = allreduce_bytes;
      line["sparsity"] = step < 20 ? 0.0 : 0.9;
      if (step % 10 == 0) {
        line["val_loss"] = loss + 0.001 * (40 - step);
      }
      text += line.dump() + "\n";
    }
    return text;
  }

  static json summary(double loss, double allreduce_bytes) {
    const json rank = {{"weight", {{"bytes", 200}, {"peak", 300}}},
                       {"index", {{"bytes", 10}, {"peak", 10}}}};
    json made = json::parse(R"({"tokens_per_s": 25000.0, "model_state_bytes_per_parameter": 4.25,
        "parameters": 1234567, "kept_parameters": 123456, "sparsity": 0.9, "ranks": 2,
        "grid": {"pipeline": 1, "data": 2}, "backend": "cpu", "dtype": "bf16", "git": "abc1234"})");
    made["final_val_loss"] = loss;
    made["best_val_loss"] = loss - 0.1;
    made["allreduce_bytes_per_step"] = allreduce_bytes;
    made["memory"] = {{"ranks", {rank, rank}}, {"total", rank}, {"peak_rss", 5e7}};
    return made;
  }

  /// Three steps of two ranks: forward with a nested layer, all-reduce, optimizer.
  static std::string trace(int steps, int layers) {
    json events = json::array();
    const auto add = [&](int rank, int track, const std::string& name, double begin,
                         double length) {
      events.push_back({{"ph", "X"},
                        {"pid", rank},
                        {"tid", track},
                        {"name", name},
                        {"ts", begin},
                        {"dur", length}});
    };
    for (int rank = 0; rank < 2; ++rank) {
      for (const auto& [track, name] :
           {std::pair{0, "compute"}, std::pair{1, "all-reduce"}, std::pair{2, "optimizer"}}) {
        events.push_back({{"ph", "M"},
                          {"pid", rank},
                          {"tid", track},
                          {"name", "thread_name"},
                          {"args", {{"name", name}}}});
      }
      for (int step = 0; step < steps; ++step) {
        const double begin = 1000.0 * step;
        add(rank, 0, "forward", begin, 600);
        for (int layer = 0; layer < layers; ++layer) {
          add(rank, 0, fmt::format("layer {}", layer), begin + 600.0 * layer / layers,
              600.0 / layers);
        }
        add(rank, 1, "bucket", begin + 600, 100);
        add(rank, 2, "adamw", begin + 700, 200);
      }
    }
    return json{{"traceEvents", events}}.dump();
  }

  void write_run(const fs::path& name, double loss, double allreduce_bytes) const {
    write(name / "config.toml",
          "[train]\nsteps = 40\n[optimizer]\nlr = 0.05\nkind = \"adamw\"\n[pruning]\nmethod = "
          "\"magnitude\"\nat_step = 20\n");
    write(name / "metrics.jsonl", metrics(1, 40, loss, allreduce_bytes));
    write(name / "summary.json", summary(loss, allreduce_bytes).dump());
    write(name / "trace.json", trace(5, 3));
  }

  std::string page(const std::vector<std::string>& names) const {
    return render_report(runs(names));
  }
  std::vector<RunData> runs(const std::vector<std::string>& names) const {
    std::vector<fs::path> directories;
    for (const std::string& name : names) {
      directories.push_back(root_ / name);
    }
    return read_runs(directories);
  }
  /// The first run in the page of "run".
  json shown() const { return data_of(page({"run"}))["runs"][0]; }
  static bool notes_mention(const json& run, const std::string& words) {
    for (const json& note : run.at("notes")) {
      if (note.get<std::string>().find(words) != std::string::npos) {
        return true;
      }
    }
    return false;
  }

  testing::TempDir root_;
};

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

TEST_F(ReportTest, AnAnswerComesFirst) {
  write_run("dense", 1.5, 1000);
  const json data = data_of(render_report(
      runs({"dense"}), {.sentences = {"It does not pay."}, .rows = {{"network"}, {"<b>"}}}));
  EXPECT_EQ(data["answer"]["sentences"], json({"It does not pay."}));
  EXPECT_EQ(data["answer"]["rows"][1][0], "<b>");
  EXPECT_TRUE(data_of(page({"dense"}))["answer"]["rows"].empty());
}

TEST_F(ReportTest, ShowsCompleteRunsSideBySide) {
  write_run("dense", 1.5, 1000);
  write_run("sparse", 1.6, 100);
  const json data = data_of(page({"dense", "sparse"}));
  ASSERT_EQ(data["runs"].size(), 2U);
  const json& sparse = data["runs"][1];
  EXPECT_EQ(sparse["name"], "sparse");
  EXPECT_TRUE(sparse["complete"]);
  EXPECT_TRUE(sparse["notes"].empty()) << sparse["notes"];
  EXPECT_EQ(sparse["pruned_at"], 20);
  EXPECT_EQ(sparse["config"]["pruning.method"], "magnitude");
  EXPECT_EQ(sparse["config"]["optimizer.lr"], "0.05");
  EXPECT_EQ(sparse["curves"]["step"].size(), 40U);
  EXPECT_EQ(sparse["curves"]["validation"]["step"], json({10, 20, 30, 40}));
  EXPECT_EQ(sparse["curves"]["seconds"][39], 4.0);
  EXPECT_EQ(sparse["memory"]["total"]["weight"], json({200.0, 300.0}));
  EXPECT_EQ(sparse["memory"]["ranks"].size(), 2U);
  const json& first = data["headlines"][0];
  EXPECT_EQ(first["values"], json({1.5, 1.6}));
}

TEST_F(ReportTest, RunsOfImagesHaveAccuracies) {
  const auto labels_of = [](const json& data) {
    std::vector<std::string> labels;
    for (const json& line : data["headlines"]) {
      labels.push_back(line["label"]);
    }
    return labels;
  };
  write_run("tokens", 1.5, 1000);
  const json without = data_of(page({"tokens"}));
  EXPECT_EQ(std::ranges::count(labels_of(without), "Top-1 accuracy"), 0);
  EXPECT_EQ(std::ranges::count(labels_of(without), "Images/s"), 0);
  EXPECT_FALSE(without["runs"][0]["curves"].contains("images_per_s"));

  std::string lines;
  for (int step = 1; step <= 4; ++step) {
    json line = {{"step", step}, {"loss", 1.0}, {"step_ms", 10.0}, {"images_per_s", 100.0 * step}};
    if (step % 2 == 0) {
      line.update({{"val_loss", 1.0}, {"val_top1", step == 2 ? 0.75 : 0.5}, {"val_top5", 0.875}});
    }
    lines += line.dump() + "\n";
  }
  write("images/metrics.jsonl", lines);
  const json data = data_of(page({"tokens", "images"}));
  const json& curves = data["runs"][1]["curves"];
  EXPECT_EQ(curves["validation"]["top1"], json({0.75, 0.5}));
  EXPECT_EQ(curves["validation"]["top5"], json({0.875, 0.875}));
  EXPECT_EQ(curves["images_per_s"], json({100, 200, 300, 400}));
  EXPECT_FALSE(curves.contains("tokens_per_s"));
  EXPECT_FALSE(data["runs"][0]["curves"]["validation"].contains("top1"));
  std::map<std::string, json> texts;
  for (const json& line : data["headlines"]) {
    texts[line["label"]] = line["texts"];
  }
  EXPECT_EQ(texts["Top-1 accuracy"], json({"-", "50.00 %"}));
  EXPECT_EQ(texts["Best top-1 accuracy"], json({"-", "75.00 %"}));
  EXPECT_EQ(texts["Best top-5 accuracy"], json({"-", "87.50 %"}));
  EXPECT_EQ(texts["Images/s"], json({"-", "400"}));
  EXPECT_EQ(texts["Tokens/s"], json({"20,035", "-"}));
  const std::string table = summary_table(runs({"tokens", "images"}));
  EXPECT_THAT(table, HasSubstr("Top-1 accuracy"));
  EXPECT_THAT(table, HasSubstr("Images/s"));
}

TEST_F(ReportTest, ChoosesStepsOfTheTrace) {
  write_run("run", 1.5, 1000);
  const json timeline = shown()["timeline"];
  EXPECT_EQ(timeline["ranks"], json({0, 1}));
  EXPECT_EQ(timeline["lanes"][1], "all-reduce");
  const json& first = timeline["windows"][1];
  EXPECT_EQ(first["label"], "First steps");
  EXPECT_EQ(first["begin"], 0);
  EXPECT_EQ(first["length"], 1900.0);
  EXPECT_EQ(first["spans"].size(), 2U * 2U * 6U);  // ranks x steps x spans
  EXPECT_EQ(timeline["windows"][2]["length"], 900.0);
  for (const json& span : first["spans"]) {
    const auto name = timeline["names"][span[5].get<size_t>()].get<std::string>();
    EXPECT_EQ(span[2], name.starts_with("layer") ? 1 : 0)
        << name;  // nested spans stand one row below
  }
}

TEST_F(ReportTest, RunsWithoutSummaryShowTheirSteps) {
  write("run/metrics.jsonl", metrics(1, 40) + "{\"step\": 41, \"lo");
  write("run/trace.json", "{\"traceEvents\": [{\"ph\": \"X\", ");
  const json data = data_of(page({"run"}));
  const json& run = data["runs"][0];
  EXPECT_FALSE(run["complete"]);
  EXPECT_EQ(run["curves"]["step"].size(), 40U);
  EXPECT_TRUE(run["timeline"].is_null());
  EXPECT_TRUE(notes_mention(run, "summary.json is missing"));
  EXPECT_TRUE(notes_mention(run, "torn"));
  EXPECT_TRUE(notes_mention(run, "config.toml is missing"));
  EXPECT_TRUE(notes_mention(run, "trace.json is incomplete"));
  EXPECT_NEAR(data["headlines"][0]["values"][0].get<double>(), 3.96, 1e-9);
}

TEST_F(ReportTest, AStoppedRunIsNotComplete) {
  write_run("run", 1.5, 1000);
  json stopped = summary(1.5, 1000);
  stopped["finished"] = false;
  write("run/summary.json", stopped.dump());
  const json run = shown();
  EXPECT_FALSE(run["complete"]);
  EXPECT_TRUE(notes_mention(run, "stopped before its last step"));
}

TEST_F(ReportTest, EveryFileMayBeEmptyOrNonsense) {
  for (const char* file : {"config.toml", "metrics.jsonl", "summary.json", "trace.json"}) {
    for (const char* text :
         {"", "\n", "[]", "{}", "null", "\"x\"", "\xff\xfe\n[[[", "[1, {\"ph\": 3}]",
          "{\"step\": \"a\", \"memory\": [1], \"traceEvents\": {\"ph\": \"X\"}}",
          "{\"step\": 1e300, \"traceEvents\": [{\"ph\": \"X\", \"pid\": \"a\"}]}"}) {
      write_run("run", 1.5, 1000);
      write(fs::path("run") / file, text);
      EXPECT_NO_THROW(data_of(page({"run"}))) << file << ": " << text;
    }
  }
}

TEST_F(ReportTest, LanesBeyondThePageShareOne) {
  write_run("run", 1.5, 1000);
  json events = json::array();
  for (int i = 0; i < 2'000; ++i) {
    events.push_back({{"ph", "X"},
                      {"name", "a"},
                      {"cat", "lane " + std::to_string(i)},
                      {"pid", i % 2 == 0 ? json(1e300) : json(-1)},
                      {"ts", i},
                      {"dur", 1}});
  }
  write("run/trace.json", json{{"traceEvents", events}}.dump());
  const json timeline = shown()["timeline"];
  EXPECT_EQ(timeline["lanes"].size(), 64U);
  EXPECT_EQ(timeline["lanes"].back(), "others");
  EXPECT_EQ(timeline["ranks"], (json{-1, 0}));
}

TEST_F(ReportTest, ThePageGetsNumbersOfThePipelineOnly) {
  write_run("run", 1.5, 1000);
  write("run/pipeline-measured.svg", "<svg></svg>");
  write("run/pipeline-predicted.svg", "<svg></svg>");
  for (const json& pipeline : {json(), json("x"), json{{"delays", 3}, {"measured", {1}}},
                               json{{"measured", {{"idle_share", 0.5}}},
                                    {"delays", {{{"mean", 2}}, {{"mean", "x"}}, 1}}}}) {
    write("run/summary.json", json{{"pipeline", pipeline}}.dump());
    const json found = shown()["pipeline"];
    ASSERT_EQ(found.is_null(), !pipeline.is_object() || !pipeline["measured"].is_object());
    if (found.is_null()) {
      continue;
    }
    const json numbers = found["numbers"];
    EXPECT_TRUE(numbers["measured"].is_object() && numbers["predicted"].is_object());
    for (const json& delay : numbers["delays"]) {
      EXPECT_EQ(delay, (json{{"mean", 2.0}}));
    }
  }
}

/// `metrics` of a launch, with its layout in the first line.
std::string with_layout(const std::string& metrics, const json& layout) {
  json first = json::parse(metrics.substr(0, metrics.find('\n')));
  first["layout"] = layout;
  return first.dump() + metrics.substr(metrics.find('\n'));
}

std::string replaced(std::string text, const std::string& part, const std::string& by) {
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + by.size())) {
    text.replace(at, part.size(), by);
  }
  return text;
}

std::string text_of(std::span<const RunData> runs, const std::string& label) {
  for (const Headline& line : headlines(runs)) {
    if (line.label == label) {
      return line.cells.front().text;
    }
  }
  return "";
}

TEST_F(ReportTest, NumbersAreOfTheLastLayout) {
  write_run("run", 1.5, 1000);
  const json two{{"ranks", 2}, {"storage", "sparse"}};
  const json one{{"ranks", 1}, {"storage", "sparse"}, {"schedule", "1f1b"}};
  const std::string later =
      replaced(replaced(metrics(31, 40), "\"allreduce_bytes\":1000", "\"allreduce_bytes\":0"),
               "\"tokens_per_s\":200", "\"tokens_per_s\":7");
  write("run/metrics.jsonl", with_layout(metrics(1, 10), two) + with_layout(metrics(11, 30), two) +
                                 with_layout(later, one));
  const json run = shown();
  EXPECT_TRUE(notes_mention(run,
                            "From step 31 on the layout differs: ranks 2 → 1, "
                            "schedule none → 1f1b."));
  ASSERT_EQ(run["layouts"].size(), 1U) << "equal launches have one layout";
  EXPECT_EQ(run["layouts"][0]["step"], 31);
  EXPECT_EQ(run["bytes"]["allreduce"], 0);
  EXPECT_EQ(text_of(runs({"run"}), "All-reduce per step"), "none");
  EXPECT_EQ(text_of(runs({"run"}), "Tokens/s"), "738") << "median of steps 36 to 40";
}

TEST_F(ReportTest, NumbersAreOfTheLastSparsity) {
  write_run("run", 1.5, 1000);  // pruned at step 20 of 40
  const std::string text = metrics(1, 40);
  const size_t at = text.find("{", text.find("\"step\":19"));
  write("run/metrics.jsonl",
        text.substr(0, at) +
            replaced(text.substr(at), "\"allreduce_bytes\":1000", "\"allreduce_bytes\":100"));
  EXPECT_EQ(shown()["bytes"]["allreduce"], 100);
}

TEST_F(ReportTest, AContinuedRunShowsItsNewSteps) {
  write_run("run", 1.5, 1000);
  json summary = ReportTest::summary(1.5, 1000);
  summary["finished"] = false;
  summary["steps"] = 30;
  write("run/summary.json", summary.dump());
  EXPECT_EQ(text_of(runs({"run"}), "Validation loss"), "1.5000") << "of step 40";
  EXPECT_TRUE(notes_mention(shown(), "are those of the launch that ended at step 30"));
}

TEST_F(ReportTest, WithoutEvaluationTheTrainingLossStandsForTheResult) {
  write("run/metrics.jsonl", metrics(1, 9));
  std::map<std::string, bool> major;
  for (const Headline& line : headlines(runs({"run"}))) {
    major[line.label] = line.major;
  }
  EXPECT_TRUE(major.at("Training loss"));
  EXPECT_FALSE(major.at("Validation loss"));
  EXPECT_EQ(text_of(runs({"run"}), "Training loss"), "4.9910");
}

TEST_F(ReportTest, DistilledRunsHaveTheLossToTheTeacher) {
  write("plain/metrics.jsonl", metrics(1, 2));
  write("taught/metrics.jsonl",
        metrics(1, 2) + "{\"step\":3,\"loss\":2.5,\"teacher_loss\":0.25}\n");
  const json data = data_of(page({"plain", "taught"}));
  EXPECT_FALSE(data["runs"][0]["curves"].contains("teacher_loss"));
  EXPECT_EQ(data["runs"][1]["curves"]["teacher_loss"], (json{nullptr, nullptr, 0.25}));
  EXPECT_EQ(text_of(runs({"taught"}), "Loss to the teacher"), "0.2500");
  EXPECT_EQ(text_of(runs({"plain"}), "Loss to the teacher"), "") << "no row";
}

TEST_F(ReportTest, PicturesWithoutNumbersAreLeftOut) {
  write_run("run", 1.5, 1000);
  write("run/pipeline-measured.svg", "<svg></svg>");
  write("run/pipeline-predicted.svg", "<svg></svg>");
  EXPECT_TRUE(shown()["pipeline"].is_null()) << "summary has no pipeline";
  json summary = ReportTest::summary(1.5, 1000);
  summary["pipeline"] = {{"measured", {{"idle_share", 0.5}}}};
  write("run/summary.json", summary.dump());
  EXPECT_EQ(shown()["pipeline"]["pictures"].size(), 2U);
  // Delays of one rank have no pictures.
  summary["pipeline"] = {{"delays", {{{"mean", 1.5}}}}};
  write("run/summary.json", summary.dump());
  const json pipeline = shown()["pipeline"];
  EXPECT_TRUE(pipeline["pictures"].empty());
  EXPECT_EQ(pipeline["numbers"]["delays"][0]["mean"], 1.5);
}

TEST_F(ReportTest, AMissingTraceIsNamedOnlyIfItIsExpected) {
  write_run("run", 1.5, 1000);
  fs::remove(root_ / "run/trace.json");
  EXPECT_TRUE(notes_mention(shown(), "trace.json"));
  write("run/config.toml", "[run]\ntrace = false\n");
  EXPECT_FALSE(notes_mention(shown(), "trace.json"));
}

/// The value of each colour variable of report.css, for light and for dark screens.
std::array<std::map<std::string, std::string>, 2> palettes() {
  std::array<std::map<std::string, std::string>, 2> found;
  std::ifstream file(fs::path(ESPALIER_SOURCE_DIR) / "src/report/report.css");
  std::stringstream text;
  text << file.rdbuf();
  std::string all = text.str();
  const std::regex variable("--([a-z0-9-]+): (#[0-9a-f]{6});");
  const size_t dark = all.find("@media (prefers-color-scheme: dark)");
  for (size_t i = 0; i < 2; ++i) {
    const std::string part = i == 0 ? all.substr(0, dark) : all.substr(dark);
    for (std::sregex_iterator at(part.begin(), part.end(), variable), end; at != end; ++at) {
      found.at(i)[(*at)[1]] = (*at)[2];
    }
  }
  return found;
}

/// Coordinates in CIELAB, in which distances are about those that people see.
std::array<double, 3> lab(const std::string& color) {
  std::array<double, 3> linear{};
  for (size_t i = 0; i < 3; ++i) {
    const double value = std::stoi(color.substr(1 + 2 * i, 2), nullptr, 16) / 255.0;
    linear.at(i) = value <= 0.04045 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4);
  }
  const auto [r, g, b] = linear;
  const auto f = [](double t) { return t > 0.008856 ? std::cbrt(t) : 7.787 * t + 16.0 / 116; };
  const double x = f((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047);
  const double y = f(0.2126 * r + 0.7152 * g + 0.0722 * b);
  const double z = f((0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883);
  return {116 * y - 16, 500 * (x - y), 200 * (y - z)};
}

TEST(ReportColors, AColorHasOneMeaning) {
  for (const auto& palette : palettes()) {
    std::map<std::string, std::string> kinds = palette;
    for (const char* name :
         {"paper", "panel", "ink", "quiet", "line", "grid", "accent", "note", "note-line", "bad"}) {
      EXPECT_EQ(kinds.erase(name), 1U) << name;
    }
    ASSERT_EQ(kinds.size(), 25U);
    for (const auto& [a, color_a] : kinds) {
      for (const auto& [b, color_b] : kinds) {
        const auto [l1, a1, b1] = lab(color_a);
        const auto [l2, a2, b2] = lab(color_b);
        EXPECT_TRUE(a == b || std::hypot(l1 - l2, a1 - a2, b1 - b2) > 10) << a << " and " << b;
      }
    }
  }
}

TEST_F(ReportTest, AStepThatComesAgainReplacesTheFirst) {
  write("run/metrics.jsonl", metrics(1, 30) + metrics(21, 25));
  const json curves = shown()["curves"];
  EXPECT_EQ(curves["step"].size(), 25U);
  EXPECT_EQ(curves["seconds"].back(), 2.5);
}

TEST_F(ReportTest, NotANumberLeavesAGap) {
  write("run/metrics.jsonl", metrics(1, 2) + "{\"step\": 3, \"loss\": null, \"step_ms\": 100}\n");
  const json curves = shown()["curves"];
  EXPECT_TRUE(curves["loss"][2].is_null());
  EXPECT_FALSE(curves["loss"][1].is_null());
}

TEST_F(ReportTest, TextFromFilesCannotLeaveItsPlace) {
  const std::string evil = "</script><script>alert(1)</script><!--";
  write_run("a<b>&\"'", 1.5, 1000);
  write("a<b>&\"'/config.toml", "[data]\ntrain = ['" + evil + "']\nkind = '" + evil + "'\n");
  const std::string clean = page({"a<b>&\"'"});
  EXPECT_THAT(clean, Not(HasSubstr("alert(1)</script>")));
  EXPECT_EQ(count_of(clean, "</script>"), 2U);
  EXPECT_THAT(clean, Not(HasSubstr("a<b>")));
  const json run = data_of(clean)["runs"][0];
  EXPECT_EQ(run["name"], "a<b>&\"'");
  EXPECT_EQ(run["config"]["data.kind"], evil);
}

TEST_F(ReportTest, NeedsNoNetwork) {
  write_run("run", 1.5, 1000);
  const std::string text = page({"run"});
  EXPECT_EQ(count_of(text, "http"), count_of(text, "http://www.w3.org/2000/svg"));
  for (const char* way_out : {" src=", "<link", "@import", "url(//", "fetch(", "XMLHttpRequest"}) {
    EXPECT_THAT(text, Not(HasSubstr(way_out))) << way_out;
  }
  EXPECT_THAT(text, Not(HasSubstr("{{"))) << "a part of the page was not filled in";
}

TEST_F(ReportTest, LongRunsStaySmall) {
  const std::string steps = metrics(1, 20'000);
  const std::string spans = trace(3, 3000);
  for (const char* name : {"a", "b", "c", "d"}) {
    write_run(name, 1.5, 1000);
    write(fs::path(name) / "metrics.jsonl", steps);
    write(fs::path(name) / "trace.json", spans);
  }
  const std::string text = page({"a", "b", "c", "d"});
  EXPECT_LT(text.size(), 3'000'000U);
  const json run = data_of(text)["runs"][0];
  EXPECT_GT(run["curves"]["step"].size(), 1000U);
  EXPECT_EQ(run["curves"]["step"].back(), 20'000);
  EXPECT_GT(run["timeline"]["windows"][0]["left_out"], 0);
}

TEST_F(ReportTest, SpikeOfOneStepSurvivesAveraging) {
  std::string text = metrics(1, 4'000);
  text += R"({"step": 4001, "loss": 99.0, "step_ms": 1})"
          "\n" +
          metrics(4'002, 6'000);
  write("run/metrics.jsonl", text);
  const json curves = shown()["curves"];
  const auto high = curves["loss_high"].get<std::vector<double>>();
  EXPECT_EQ(*std::max_element(high.begin(), high.end()), 99.0);
}

TEST_F(ReportTest, SameDirectoriesGiveTheSameBytes) {
  write_run("run", 1.5, 1000);
  EXPECT_EQ(page({"run", "run"}), page({"run", "run"}));
}

TEST_F(ReportTest, RunsOfTheSameNameGetDifferentNames) {
  write_run("x/run", 1.5, 1000);
  write_run("y/run", 1.5, 1000);
  const json data = data_of(page({"x/run", "y/run/", "y/run"}));
  EXPECT_EQ(data["runs"][0]["name"], "x/run");
  EXPECT_EQ(data["runs"][1]["name"], "y/run");
  EXPECT_EQ(data["runs"][2]["name"], "y/run (2)");
}

TEST_F(ReportTest, WritesTheFile) {
  write_run("run", 1.5, 1000);
  write_report(runs({"run"}), root_ / "report.html");
  std::ifstream in(root_ / "report.html", std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  EXPECT_EQ(text.str(), page({"run"}));
  EXPECT_THROW(write_report(runs({"run"}), root_ / "run/config.toml/report.html"), Failure);
}

TEST_F(ReportTest, RefusesDirectoriesWithoutARun) {
  const auto message_for = [&](const std::vector<std::string>& names) {
    return failure_of([&] { page(names); });
  };
  fs::create_directories(root_ / "empty");
  EXPECT_THAT(message_for({"absent"}), HasSubstr("absent' is no directory"));
  EXPECT_THAT(message_for({"empty"}), HasSubstr("empty' is no run directory"));
  EXPECT_THAT(message_for({"empty"}), HasSubstr("run.out"));
  EXPECT_THAT(message_for({}), HasSubstr("no run directory was given"));
}

TEST_F(ReportTest, TableHasTheHeadlineNumbers) {
  write_run("dense", 1.5, 10'000);
  write_run("sparse", 1.8, 1000);
  fs::remove(root_ / "sparse/summary.json");
  write("sparse/metrics.jsonl", metrics(1, 9));
  const std::string table = summary_table(runs({"dense", "sparse"}));
  EXPECT_EQ(table,
            "                             dense  sparse (so far)\n"
            "Validation loss             1.5000                -\n"
            "Tokens/s                    20,035           20,007  x 0.999\n"
            "Model state per parameter   4.25 B                -\n"
            "All-reduce per step        10.0 kB          1.00 kB    x 0.1\n");
}

TEST(PlanPage, ContainsThePlanAndTheStep) {
  const nlohmann::ordered_json plan{{"machine", "</script>&"}, {"plans", {1, 2.5}}};
  PlannedStep step{.lanes = {"compute", "all-reduce"}, .length = 30'000};
  for (int i = 0; i < 30'000; ++i) {
    step.spans.push_back({.rank = i % 2,
                          .lane = 0,
                          .name = "forward",
                          .begin = static_cast<double>(i),
                          .duration = i < 10'000 ? 0.5 : 1});
  }
  const std::string page = render_plan(plan, step);
  EXPECT_EQ(count_of(page, "</script>"), 2U);
  EXPECT_THAT(page, Not(HasSubstr("{{"))) << "a part of the page was not filled in";
  const json data = data_of(page);
  EXPECT_EQ(data["plan"], json(plan));
  const json& window = data["timeline"]["windows"][0];
  EXPECT_EQ(data["timeline"]["lanes"], json(step.lanes));
  EXPECT_EQ(data["timeline"]["ranks"], json({0, 1}));
  EXPECT_EQ(window["length"], 30'000.0);
  EXPECT_EQ(window["spans"].size(), 24'000U);
  EXPECT_EQ(window["left_out"], 6'000);
}

TEST(ReportText, Numbers) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999.4), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(1000), "1.00 kB");
  EXPECT_EQ(bytes_text(999'900), "1.00 MB");
  EXPECT_EQ(bytes_text(12'345'678), "12.3 MB");
  EXPECT_EQ(bytes_text(7.5e15), "7500 TB");
}

}  // namespace
}  // namespace espalier::report::report_test
