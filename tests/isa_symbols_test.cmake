# Sources that are compiled for several instruction sets must not carry shared inline functions: the
# linker keeps one copy, and it may be the one that this machine cannot run (src/kernels/cpu/table.h).
# cmake -D NM=nm -D NAMESPACE=avx512 -D OBJECTS=a.o;b.o -P isa_symbols_test.cmake
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND ${NM} --demangle --defined-only ${object}
    OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]* [WVu] [^\n]*" shared "${symbols}")
  list(FILTER shared EXCLUDE REGEX "espalier::kernels::${NAMESPACE}::|__gxx_personality")
  if(shared)
    message(SEND_ERROR "${object} defines symbols that other objects share:\n${shared}")
  endif()
endforeach()
