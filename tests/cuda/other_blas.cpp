// A library with cuBLASLt's name for its version, and another version than any program is built
// for.
#include <cstddef>

extern "C" size_t cublasLtGetVersion() { return 990'000; }
