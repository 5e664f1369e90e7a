// A library that exports cuBLASLt's version function and reports a version for which no program is
// built.
#include <cstddef>

extern "C" size_t cublasLtGetVersion() { return 990'000; }
