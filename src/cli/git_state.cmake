# cmake -D ROOT=checkout -D OUTPUT=FILE -P git_state.cmake: defines espalier::cli::build_git().
# "unknown" outside a checkout (a source archive), or without git.
set(state "")
find_program(git git)
if(git)
  execute_process(COMMAND ${git} -C ${ROOT} rev-parse --show-toplevel
    OUTPUT_VARIABLE top ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  file(REAL_PATH ${ROOT} root)
  if(top STREQUAL root) # not some other project's checkout that this one was unpacked into
    execute_process(COMMAND ${git} -C ${ROOT} describe --always --dirty --tags
      OUTPUT_VARIABLE state ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
endif()
if(state STREQUAL "")
  set(state "unknown")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
#include "src/cli/commands.h"

std::string espalier::cli::build_git() { return "@state@"; }
]])
