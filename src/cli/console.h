#pragma once
// The terminal: errors, notes, and the progress of a long run. If standard error is a terminal, a
// progress bar with rate, loss and remaining time; else plain lines, at most one every few seconds.
#include <cstdint>
#include <string>

#include "src/train/run/trainer.h"

namespace espalier::cli {

/// "espalier: error: …" on standard error, with the rank if there are several.
void print_error(const std::string& message);

/// Whether a user sees standard error: it is a terminal, or, under mpirun (where it is a pipe), the
/// environment sets ESPALIER_TERMINAL=1.
bool on_terminal();

/// The rank that a launcher gave this process, before MPI starts; 0 without a launcher.
int launched_rank();

/// "1 min 05 s", "3 h 12 min".
std::string duration_text(double seconds);
/// "4.3 MB", "812 B": powers of ten.
std::string bytes_text(double bytes);

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

}  // namespace espalier::cli
