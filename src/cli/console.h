#pragma once
// The terminal: errors, notes, and the progress of a long run. A bar with rate, loss and remaining
// time where standard error is a terminal; plain lines, at most one every few seconds, where it is
// not.
#include <cstdint>
#include <string>

#include "src/train/run/trainer.h"

namespace espalier::cli {

/// "espalier: error: …" on standard error, with the rank when there are several.
void print_error(const std::string& message);

/// Whether a person sees standard error: it is a terminal, or, under mpirun (where it is a pipe),
/// the environment says so with ESPALIER_TERMINAL=1.
bool on_terminal();

/// The rank a launcher gave this process, before MPI starts; 0 when alone.
int launched_rank();

/// "1 min 05 s", "3 h 12 min".
std::string duration_text(double seconds);
/// "4.3 MB", "812 B": powers of ten.
std::string bytes_text(double bytes);

/// Shows a run on standard error. Only rank 0 has one that prints.
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
  double smooth_rate_ = 0;  ///< steps a second
  double last_step_at_ = 0;
  bool bar_open_ = false;
};

}  // namespace espalier::cli
