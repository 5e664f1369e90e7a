#include "src/cli/shared/exit_code.h"

#include <cstdlib>
#include <new>
#include <system_error>

#include "io/files/folders.h"
#include "io/files/raw_file.h"
#include "io/run/metrics.h"
#include "io/run/parse_json.h"
#include "src/core/error.h"

namespace espalier::cli {

Outcome outcome_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Usage& failure) {
    return {.code = kUsage, .message = failure.what()};
  } catch (const Failure& failure) {
    return {.code = failure.retryable() ? kRetry : kFailed, .message = failure.what()};
  } catch (const std::bad_alloc&) {
    return {.code = kFailed,
            .message = "out of memory: use a smaller model or micro_batch, or more ranks"};
  } catch (const std::system_error& error) {  // files, threads
    return {.code = is_transient(error.code().value()) ? kRetry : kFailed,
            .message = fmt::format("the system refused a request: {}; fix the cause, then repeat "
                                   "the command",
                                   error.what())};
  } catch (const std::exception& e) {
    return {.code = kBug,
            .message = fmt::format("bug in espalier, please report it: {}", e.what())};
  }
}

void write_outcome(const Outcome& outcome) noexcept {
  const char* file = std::getenv("ESPALIER_OUTCOME");
  if (file == nullptr || *file == 0) {
    return;
  }
  try {
    // A file of something else (the variable is stray) stays. Ranks of one attempt share the file.
    if (io::path_exists(file) &&
        !io::parse_json(io::read_text(file, "outcome", io::kMaxConfig)).contains("exit")) {
      return;
    }
    io::write_json_atomically(
        file, {{"exit", static_cast<int>(outcome.code)}, {"error", outcome.message}});
  } catch (const std::exception&) {  // the exit code remains
  }
}

}  // namespace espalier::cli
