#pragma once
// Standard output: text, one JSON object, tables. Text groups digits of numbers; programs use
// --json. Standard error: errors, notes, and the progress of a long run: on a terminal a bar with
// rate, loss and remaining time; else plain lines, at most one every few seconds.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace espalier::train {
struct StepReport;
}

namespace espalier::cli {

/// Opens /dev/null in place of standard files that are closed: files that a run opens must not get
/// their numbers, or messages would be written into them.
void keep_standard_files();

/// Writes and flushes. Throws Failure if standard output cannot be written (a full disk).
void print(std::string_view text);
/// Prints the object of --json and a newline.
void print_json(const nlohmann::ordered_json& object);

/// Columns two spaces apart, the first left-aligned, the others right-aligned; one line per row.
using Rows = std::vector<std::vector<std::string>>;
std::string table(const Rows& rows);

/// "1,234,567"
std::string grouped(int64_t number);
/// "90.00 %"
std::string percent(double share);
/// "4.3 MB", "812 B": powers of ten.
std::string bytes_text(double bytes);

/// A line on standard error.
void print_note(const std::string& text);
/// "espalier: error: …" on standard error, with the rank if there are several.
void print_error(const std::string& message);

/// Whether a user sees standard error: it is a terminal, or, under mpirun (where it is a pipe), the
/// environment sets ESPALIER_TERMINAL=1.
bool on_terminal();

/// The rank that a launcher gave this process, before MPI starts; 0 without a launcher.
int launched_rank();

/// Shows the progress of a run on standard error. Prints on rank 0 only.
class Progress {
 public:
  Progress(bool enabled, int64_t total_steps, bool terminal);

  void step(const train::StepReport& report);
  void note(const std::string& text);
  /// Ends the bar's line.
  void finish();

 private:
  std::string line(const train::StepReport& report) const;
  void draw(const train::StepReport& report);

  bool enabled_;
  bool terminal_;
  int64_t total_;
  int64_t first_step_ = -1;
  double started_ = 0;  ///< seconds
  double last_shown_ = 0;
  double smooth_rate_ = 0;  ///< steps per second
  double last_step_at_ = 0;
  bool bar_open_ = false;
};

/// Shows how far a long command is: on a terminal in one line, else in a line every few seconds.
/// Short work shows nothing.
class WorkProgress {
 public:
  enum class Unit : uint8_t { count, bytes };
  explicit WorkProgress(std::string what = "", Unit unit = Unit::count);
  ~WorkProgress() { close(); }
  WorkProgress(const WorkProgress&) = delete;
  WorkProgress& operator=(const WorkProgress&) = delete;
  /// A bar and the time left.
  void show(int64_t done, int64_t total);
  /// The present part of the work.
  void show(const std::string& text);
  void close();  ///< removes the line, for notes of the caller

 private:
  std::string what_;
  Unit unit_;
  bool terminal_;
  double started_;  ///< seconds
  double last_shown_;
  bool bar_open_ = false;
};

}  // namespace espalier::cli
