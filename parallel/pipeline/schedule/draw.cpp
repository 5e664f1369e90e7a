#include "parallel/pipeline/schedule/draw.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "src/core/error.h"

namespace espalier::parallel {
namespace {

struct Look {
  char letter;
  std::string_view light, dark;  ///< colours of even and odd chunks
};

Look look_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
      return {'F', "#a8c8ec", "#5b8fc9"};
    case ActionKind::backward:
      return {'B', "#b5dba6", "#6aa84f"};
    case ActionKind::backward_input:
      return {'I', "#a5ddd2", "#45a18f"};
    default:
      return {'W', "#f3d9a0", "#d69f32"};
  }
}

double shortest(const Timeline& timeline) {
  double least = timeline.makespan();
  for (const auto& actions : timeline.ranks) {
    for (const TimedAction& timed : actions) {
      if (timed.end > timed.begin) {
        least = std::min(least, timed.end - timed.begin);
      }
    }
  }
  return least;
}

std::string text_row(const std::vector<TimedAction>& actions, double scale, size_t columns) {
  std::string row(columns, '.');
  auto column = [&](double time) {
    return std::min(static_cast<size_t>(std::lround(time * scale)), columns);
  };
  for (const TimedAction& timed : actions) {
    const size_t begin = column(timed.begin);
    const size_t width = column(timed.end) - begin;
    std::string cell =
        fmt::format("{}{}", look_of(timed.action.kind).letter, timed.action.micro_batch);
    if (cell.size() > width) {
      cell.resize(std::min<size_t>(width, 1));
    }
    cell.resize(width, '-');
    row.replace(begin, width, cell);
  }
  return row;
}

constexpr int kRow = 26;      ///< height of a rank, pixels
constexpr int kLeft = 64;     ///< of the first action
constexpr int kTop = 34;      ///< of the first rank
constexpr int kWidth = 1200;  ///< of all actions

std::string box(const TimedAction& timed, size_t rank, bool dark, double scale) {
  const Look look = look_of(timed.action.kind);
  const double x = kLeft + timed.begin * scale;
  const double width = (timed.end - timed.begin) * scale;
  const int y = kTop + static_cast<int>(rank) * kRow;
  std::string svg = fmt::format(
      "<rect x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\" stroke=\"#fff\" "
      "stroke-width=\"0.6\"><title>{}, {:.4g} to {:.4g}</title></rect>\n",
      x, y, width, kRow - 4, dark ? look.dark : look.light, describe(timed.action), timed.begin,
      timed.end);
  if (width >= 14) {
    svg += fmt::format("<text x=\"{:.2f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                       x + width / 2, y + kRow - 11, timed.action.micro_batch);
  }
  return svg;
}

std::string legend(int y) {
  std::string svg;
  int x = kLeft;
  for (const auto& [kind, text] :
       {std::pair{ActionKind::forward, "forward"}, std::pair{ActionKind::backward, "backward"},
        std::pair{ActionKind::backward_input, "backward, input"},
        std::pair{ActionKind::backward_weight, "backward, weights"}}) {
    svg += fmt::format(
        "<rect x=\"{}\" y=\"{}\" width=\"14\" height=\"14\" fill=\"{}\"/><text x=\"{}\" "
        "y=\"{}\">{}</text>\n",
        x, y, look_of(kind).light, x + 20, y + 12, text);
    x += 160;
  }
  return svg;
}

}  // namespace

std::string draw_text(const Timeline& timeline, int columns) {
  constexpr double kCell = 3;  // least width of the shortest action, characters
  const double makespan = timeline.makespan();
  if (makespan <= 0) {
    return {};
  }
  const double scale = std::min(kCell / shortest(timeline), columns / makespan);
  const auto width = static_cast<size_t>(std::lround(makespan * scale));
  std::string text;
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    text += fmt::format("rank {:<3}|{}|\n", rank, text_row(timeline.ranks[rank], scale, width));
  }
  return text;
}

std::string draw_svg(const Timeline& timeline, const std::string& title) {
  const double makespan = timeline.makespan();
  const double scale = makespan > 0 ? kWidth / makespan : 0;
  const int bottom = kTop + static_cast<int>(timeline.ranks.size()) * kRow;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" "
      "font-size=\"11\" fill=\"#222\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n"
      "<text x=\"{2}\" y=\"20\" font-size=\"14\">{3}</text>\n",
      kLeft + kWidth + 16, bottom + 34, kLeft, title);
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const int y = kTop + static_cast<int>(rank) * kRow;
    svg += fmt::format(
        "<text x=\"10\" y=\"{}\">rank {}</text><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" "
        "fill=\"#f2f2f2\"/>\n",
        y + kRow - 11, rank, kLeft, y, kWidth, kRow - 4);
    // Shades distinguish chunks: light and dark alternate over the stages of a rank in ascending
    // order.
    std::set<int> stages;
    for (const TimedAction& timed : timeline.ranks[rank]) {
      stages.insert(timed.action.stage);
    }
    for (const TimedAction& timed : timeline.ranks[rank]) {
      const auto chunk = std::distance(stages.begin(), stages.find(timed.action.stage));
      svg += box(timed, rank, chunk % 2 == 1, scale);
    }
  }
  return svg + legend(bottom + 10) + "</svg>\n";
}

}  // namespace espalier::parallel
