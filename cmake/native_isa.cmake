# Sets native_isa to the best of the instruction sets that this machine supports.
set(native_isa portable)
set(source ${CMAKE_BINARY_DIR}/native_isa.cpp)
file(WRITE ${source} "
#include \"${CMAKE_SOURCE_DIR}/src/kernels/cpu/instruction_set.h\"
int main() { return static_cast<int>(espalier::kernels::best_instruction_set()); }
")
try_run(isa_number isa_compiled ${CMAKE_BINARY_DIR}/native_isa ${source})
if(isa_compiled AND isa_number MATCHES "^[0-4]$")
  list(GET instruction_sets ${isa_number} native_isa)
endif()
message(STATUS "Best kernels that this CPU can run: ${native_isa}")
