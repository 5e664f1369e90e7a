# Sets native_isa to the first of avx512bf16, avx512, avx2 and portable that this machine supports, by the
# rule of src/kernels/cpu/tables_x86.cpp.
set(native_isa portable)
set(source ${CMAKE_BINARY_DIR}/native_isa.cpp)
file(WRITE ${source} [[
int main() {
  const bool v4 = __builtin_cpu_supports("x86-64-v4") != 0;
  if (v4 && __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512vbmi2") != 0) {
    return 3;
  }
  return v4 ? 2 : __builtin_cpu_supports("x86-64-v3") != 0 ? 1 : 0;
}
]])
try_run(isa_number isa_compiled ${CMAKE_BINARY_DIR}/native_isa ${source})
if(isa_compiled AND isa_number MATCHES "^[0-3]$")
  list(GET instruction_sets ${isa_number} native_isa)
endif()
message(STATUS "Kernels for this CPU alone: ${native_isa}")
