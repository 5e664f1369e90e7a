#include "src/report/headline.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "io/run/metrics.h"
#include "src/core/error.h"

namespace espalier::report {
namespace {

using Number = std::optional<double>;

/// Mean over the last tenth of the steps.
Number last_tenth(const RunData& run, double StepRecord::*member) {
  double sum = 0;
  size_t count = 0;
  for (size_t i = run.steps.size() - (run.steps.size() + 9) / 10; i < run.steps.size(); ++i) {
    if (std::isfinite(run.steps[i].*member)) {
      sum += run.steps[i].*member;
      ++count;
    }
  }
  return count == 0 ? std::nullopt : Number(sum / static_cast<double>(count));
}

/// Median over the settled steps.
Number settled(const RunData& run, double StepRecord::*member) {
  const auto changed = [&](size_t i) {
    const StepRecord& before = run.steps[i - 1];
    const StepRecord& now = run.steps[i];
    const bool known = std::isfinite(before.sparsity) && std::isfinite(now.sparsity);
    return before.layout != now.layout || (known && before.sparsity != now.sparsity);
  };
  std::vector<double> values;
  for (size_t i = io::settled_from(run.steps.size(), changed); i < run.steps.size(); ++i) {
    if (std::isfinite(run.steps[i].*member)) {
      values.push_back(run.steps[i].*member);
    }
  }
  return io::median(std::move(values));
}

std::vector<double> values_of(const RunData& run, double StepRecord::*member) {
  std::vector<double> values;
  for (const StepRecord& record : run.steps) {
    if (std::isfinite(record.*member)) {
      values.push_back(record.*member);
    }
  }
  return values;
}

using NumberOf = std::function<Number(const RunData&)>;

NumberOf last(double StepRecord::*member) {
  return [member](const RunData& run) {
    const std::vector<double> values = values_of(run, member);
    return values.empty() ? std::nullopt : Number(values.back());
  };
}
NumberOf lowest(double StepRecord::*member) {
  return [member](const RunData& run) {
    const std::vector<double> values = values_of(run, member);
    return values.empty() ? std::nullopt : Number(*std::ranges::min_element(values));
  };
}
NumberOf highest(double StepRecord::*member) {
  return [member](const RunData& run) {
    const std::vector<double> values = values_of(run, member);
    return values.empty() ? std::nullopt : Number(*std::ranges::max_element(values));
  };
}
NumberOf settled_at(double StepRecord::*member) {
  return [member](const RunData& run) { return settled(run, member); };
}

Cell cell(const Number& value, const std::function<std::string(double)>& text) {
  return value ? Cell{.value = value, .text = text(*value)} : Cell{};
}

std::string loss_text(double value) { return fmt::format("{:.4f}", value); }
std::string two_digits(double value) { return fmt::format("{:.2f} B", value); }
std::string percent(double value) { return fmt::format("{:.2f} %", 100 * value); }

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 60) {
    return fmt::format("{:.1f} s", seconds);
  }
  if (whole < 3600) {
    return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  }
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

/// "summary.key" as text: a string as it is, an object as "pipeline 1, data 2".
Cell text_cell(const RunData& run, const char* key) {
  const auto found = run.summary.find(key);
  if (found == run.summary.end() || found->is_null()) {
    return {};
  }
  if (found->is_string()) {
    return {.value = std::nullopt, .text = found->get<std::string>()};
  }
  if (!found->is_object()) {
    return {.value = std::nullopt, .text = found->dump()};
  }
  std::string text;
  for (const auto& [name, value] : found->items()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value.dump());
  }
  return {.value = std::nullopt, .text = text};
}

Number peak_rss(const RunData& run) {
  const auto memory = run.summary.find("memory");
  const bool known = memory != run.summary.end() && memory->is_object();
  return known ? number_at(*memory, "peak_rss") : std::nullopt;
}

using CellOf = std::function<Cell(const RunData&)>;

/// A number computed from the steps, which summary.json may be older than; else that of
/// summary.json.
CellOf number(const char* key, std::string (*text)(double), NumberOf computed = {}) {
  return [=](const RunData& run) {
    const Number found = computed ? computed(run) : std::nullopt;
    return cell(found ? found : number_at(run.summary, key), text);
  };
}

CellOf text(const char* key) {
  return [key](const RunData& run) { return text_cell(run, key); };
}

template <class T>
CellOf last_step(T StepRecord::*member, std::string (*text)(double)) {
  return [=](const RunData& run) {
    return run.steps.empty() ? Cell{} : cell(static_cast<double>(run.steps.back().*member), text);
  };
}

struct Row {
  const char* label;
  const char* hint;
  CellOf of;
  Better better = Better::neither;
  bool major = false;
  bool of_some_data = false;  ///< left out if no run has it
};

std::vector<Row> rows() {
  return {
      {"Validation loss", "At the last evaluation; nats a token or image.",
       number("final_val_loss", loss_text, last(&StepRecord::val_loss)), Better::lower, true},
      {"Best validation loss", "Lowest of all evaluations.",
       number("best_val_loss", loss_text, lowest(&StepRecord::val_loss)), Better::lower},
      {"Training loss", "Mean over the last tenth of the steps; nats a token or image.",
       [](const RunData& run) { return cell(last_tenth(run, &StepRecord::loss), loss_text); },
       Better::lower},
      {"Loss to the teacher", "At the last step; T² KL(teacher ‖ network), nats a token or image.",
       number("", loss_text, last(&StepRecord::teacher_loss)), Better::lower, false, true},
      {"Top-1 accuracy",
       "At the last evaluation; share of images whose class is the most likely one.",
       number("final_val_top1", percent, last(&StepRecord::val_top1)), Better::higher, true, true},
      {"Best top-1 accuracy", "Highest of all evaluations.",
       number("best_val_top1", percent, highest(&StepRecord::val_top1)), Better::higher, false,
       true},
      {"Top-5 accuracy",
       "At the last evaluation; share of images whose class is among the five most likely ones.",
       number("final_val_top5", percent, last(&StepRecord::val_top5)), Better::higher, false, true},
      {"Best top-5 accuracy", "Highest of all evaluations.",
       number("best_val_top5", percent, highest(&StepRecord::val_top5)), Better::higher, false,
       true},
      {"Tokens/s", "Of all ranks together: median since layout and sparsity last changed.",
       number("tokens_per_s", grouped, settled_at(&StepRecord::tokens_per_s)), Better::higher, true,
       true},
      {"Images/s", "Of all ranks together: median since layout and sparsity last changed.",
       number("images_per_s", grouped, settled_at(&StepRecord::images_per_s)), Better::higher, true,
       true},
      {"Model state per parameter",
       "Weights, gradients, master copy, moments and index that the arena holds at the end, "
       "divided "
       "by all parameters, pruned ones included.",
       number("model_state_bytes_per_parameter", two_digits), Better::lower, true},
      {"All-reduce per step",
       "Bytes that rank 0 sends in one step's all-reduces; none with one replica.",
       [](const RunData& run) {
         const Number bytes = allreduce_bytes(run);
         return bytes == 0.0 ? Cell{.value = std::nullopt, .text = "none"}
                             : cell(bytes, bytes_text);
       },
       Better::lower, true},
      {"Peak memory of the processes", "Resident set size at its highest, summed over the ranks.",
       [](const RunData& run) { return cell(peak_rss(run), bytes_text); }, Better::lower},
      {"Time in steps", "Sum of step times, without evaluation and checkpoints.",
       last_step(&StepRecord::seconds, duration_text), Better::lower},
      {"Steps", "Last step in metrics.jsonl.", last_step(&StepRecord::step, grouped)},
      {"Parameters", "All, pruned ones included.", number("parameters", grouped)},
      {"Kept parameters", "Stored and updated.", number("kept_parameters", grouped)},
      {"Sparsity", "Zeros divided by prunable parameters.", number("sparsity", percent)},
      {"Ranks", "Processes.", number("ranks", grouped)},
      {"Grid", "Pipeline stages and data-parallel copies.", text("grid")},
      {"Data type", "Of weights and activations.", text("dtype")},
      {"Backend", "Kernels that computed.", text("backend")},
      {"Commit", "Of the program.", text("git")},
  };
}

}  // namespace

std::vector<Headline> headlines(std::span<const RunData> runs) {
  std::vector<Headline> out;
  for (const Row& row : rows()) {
    Headline line{.label = row.label,
                  .hint = row.hint,
                  .better = row.better,
                  .major = row.major,
                  .cells = {}};
    for (const RunData& run : runs) {
      line.cells.push_back(row.of(run));
    }
    const auto unknown = [](const Cell& one) { return !one.value; };
    if (!row.of_some_data || !std::ranges::all_of(line.cells, unknown)) {
      out.push_back(std::move(line));
    }
  }
  // The first line that has a loss stands for the result.
  const auto major = [&](const char* label, bool value) {
    std::ranges::find(out, label, &Headline::label)->major = value;
  };
  const auto& validation = out.front().cells;
  const bool evaluated =
      std::ranges::any_of(validation, [](const Cell& one) { return one.value.has_value(); });
  major("Validation loss", evaluated);
  major("Training loss", !evaluated);
  return out;
}

std::optional<double> allreduce_bytes(const RunData& run) {
  const Number found = settled(run, &StepRecord::allreduce_bytes);
  return found ? found : number_at(run.summary, "allreduce_bytes_per_step");
}

std::optional<double> p2p_bytes(const RunData& run) { return settled(run, &StepRecord::p2p_bytes); }

std::string grouped(double value) {
  const std::string digits = fmt::format("{:.0f}", value);
  const size_t sign = digits.starts_with('-') ? 1 : 0;
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > sign && (digits.size() - i) % 3 == 0) {
      text += ',';
    }
    text += digits[i];
  }
  return text;
}

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"kB", "MB", "GB", "TB"};
  if (bytes < 1000) {
    return fmt::format("{:.0f} B", bytes);
  }
  size_t unit = 0;
  double scaled = bytes / 1000;
  while (scaled >= 999.5 && unit + 1 < std::size(kUnits)) {
    scaled /= 1000;
    ++unit;
  }
  const int decimals = scaled < 9.995 ? 2 : scaled < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", scaled, decimals, kUnits[unit]);
}

}  // namespace espalier::report
