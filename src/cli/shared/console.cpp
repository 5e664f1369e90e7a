#include "src/cli/shared/console.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "parallel/transport/launcher.h"
#include "src/core/error.h"
#include "src/core/trace.h"
#include "src/train/run/reporter.h"

namespace espalier::cli {
namespace {

constexpr double kTerminalInterval = 0.2;  // seconds between redraws
constexpr double kPlainInterval = 5.0;

/// "1 min 05 s", "3 h 12 min".
std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole >= 3600) {
    return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
  }
  if (whole >= 60) {
    return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  }
  return fmt::format("{} s", whole);
}

/// Columns of UTF-8 text on a terminal, one per character (no wide characters occur here).
size_t columns(std::string_view text) {
  size_t count = 0;
  for (const char c : text) {
    count += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
  }
  return count;
}

/// Writes to standard error. A console that is gone or full must not end a run, so errors are
/// ignored.
void say(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
  std::clearerr(stderr);
}

/// A bar of 24 columns, filled up to a share; and the share in percent.
std::string bar_text(double share) {
  constexpr int kWidth = 24;
  const int filled = static_cast<int>(share * kWidth);
  std::string bar;
  for (int i = 0; i < kWidth; ++i) {
    bar += i < filled ? "█" : "░";
  }
  return fmt::format("{} {:3.0f} %", bar, 100 * share);
}

}  // namespace

void keep_standard_files() {
  for (int file = 0; file <= 2; ++file) {
    if (::fcntl(file, F_GETFD) < 0 && errno == EBADF) {
      ::open("/dev/null", file == 0 ? O_RDONLY : O_WRONLY);  // gets the lowest free number
    }
  }
}

void print(std::string_view text) {
  const bool ok =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  check(ok, "standard output cannot be written: {}", std::generic_category().message(errno));
}

void print_json(const nlohmann::ordered_json& object) {
  // File names may contain bytes that are not UTF-8.
  print(object.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

std::string table(const Rows& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) {
      widths[c] = std::max(widths[c], columns(row[c]));
    }
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - columns(row[c]), ' ');
      line += c == 0 ? row[c] + padding : "  " + padding + row[c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string grouped(int64_t number) {
  std::string text = fmt::format("{}", number);
  const size_t first = number < 0 ? 1 : 0;
  for (size_t at = text.size(); at > first + 3;) {
    at -= 3;
    text.insert(at, 1, ',');
  }
  return text;
}

std::string percent(double share) { return fmt::format("{:.2f} %", 100 * share); }

bool on_terminal() {
  const char* set = std::getenv("ESPALIER_TERMINAL");
  return set != nullptr ? std::string_view(set) == "1" : isatty(STDERR_FILENO) != 0;
}

int launched_rank() { return parallel::find_launch().value_or(parallel::Launch()).rank; }

void print_note(const std::string& text) { say(text + "\n"); }

void print_error(const std::string& message) {
  const auto launch = parallel::find_launch();  // MPI may not have started, or may have failed to
  const std::string where = launch ? fmt::format(" (rank {})", launch->rank) : "";
  say(fmt::format("espalier: error{}: {}\n", where, message));
}

std::string bytes_text(double bytes) {
  for (const char* unit : {"B", "kB", "MB", "GB"}) {
    if (bytes < 1000) {
      return unit == std::string_view("B") ? fmt::format("{:.0f} B", bytes)
                                           : fmt::format("{:.3g} {}", bytes, unit);
    }
    bytes /= 1000;
  }
  return fmt::format("{:.3g} TB", bytes);
}

Progress::Progress(bool enabled, int64_t total_steps, bool terminal)
    : enabled_(enabled), terminal_(terminal), total_(total_steps), started_(now_seconds()) {}

void Progress::step(const train::StepReport& report) {
  if (!enabled_) {
    return;
  }
  const double now = now_seconds();
  if (first_step_ < 0) {
    first_step_ = report.step - 1;
    last_step_at_ = now - report.seconds;
  }
  const double rate = 1.0 / std::max(now - last_step_at_, 1e-9);
  smooth_rate_ = smooth_rate_ == 0 ? rate : 0.95 * smooth_rate_ + 0.05 * rate;
  last_step_at_ = now;
  const bool due = now - last_shown_ >= (terminal_ ? kTerminalInterval : kPlainInterval);
  const bool worth = report.val_loss.has_value() || report.step == total_;
  if (!due && !worth && report.step != first_step_ + 1) {
    return;
  }
  last_shown_ = now;
  if (terminal_) {
    draw(report);
  } else {
    say(line(report) + "\n");
  }
}

std::string Progress::line(const train::StepReport& report) const {
  const double rest = static_cast<double>(total_ - report.step) / std::max(smooth_rate_, 1e-9);
  std::string text = fmt::format("step {}/{}  loss {:.4f}  {:.0f} {}/s  {} left", report.step,
                                 total_, report.loss, report.predictions_per_s,
                                 report.of_images ? "images" : "tokens", duration_text(rest));
  if (report.val_loss) {
    text += fmt::format("  val_loss {:.4f}", *report.val_loss);
  }
  if (report.val_top1) {
    text += fmt::format("  top-1 {}", percent(*report.val_top1));
  }
  if (report.val_top5) {
    text += fmt::format("  top-5 {}", percent(*report.val_top5));
  }
  return text;
}

void Progress::draw(const train::StepReport& report) {
  const double share =
      static_cast<double>(report.step) / static_cast<double>(std::max<int64_t>(total_, 1));
  say(fmt::format("\r\033[K{}  {}", bar_text(share), line(report)));
  bar_open_ = true;
  if (report.val_loss) {
    finish();  // evaluations stay on the screen
  }
}

void Progress::note(const std::string& text) {
  if (!enabled_) {
    return;
  }
  if (bar_open_) {
    say("\r\033[K");
    bar_open_ = false;
  }
  say(text + "\n");
}

void Progress::finish() {
  if (bar_open_) {
    say("\n");
    bar_open_ = false;
  }
}

WorkProgress::WorkProgress(std::string what, Unit unit)
    : what_(std::move(what)),
      unit_(unit),
      terminal_(on_terminal()),
      started_(now_seconds()),
      last_shown_(started_) {}

void WorkProgress::close() {
  if (bar_open_) {
    say("\r\033[K");
    bar_open_ = false;
  }
}

void WorkProgress::show(int64_t done, int64_t total) {
  const double now = now_seconds();
  if (now - last_shown_ < (terminal_ ? kTerminalInterval : kPlainInterval) || done <= 0) {
    return;
  }
  last_shown_ = now;
  const auto text_of = [this](int64_t number) {
    return unit_ == Unit::bytes ? bytes_text(static_cast<double>(number)) : grouped(number);
  };
  const double share = static_cast<double>(done) / static_cast<double>(std::max(total, done));
  const std::string left = duration_text((now - started_) * (1 - share) / share);
  const std::string text =
      fmt::format("{} of {}  {} left", text_of(done), text_of(std::max(total, done)), left);
  if (terminal_) {
    say(fmt::format("\r\033[K{}  {}: {}", bar_text(share), what_, text));
    bar_open_ = true;
  } else {
    say(fmt::format("{}: {:.0f} %, {}\n", what_, 100 * share, text));
  }
}

void WorkProgress::show(const std::string& text) {
  const double now = now_seconds();
  if (terminal_) {
    say("\r\033[K" + text);
    bar_open_ = true;
  } else if (now - last_shown_ >= kPlainInterval) {
    last_shown_ = now;
    say(text + "\n");
  }
}

}  // namespace espalier::cli
