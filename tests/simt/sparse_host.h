#pragma once
// The host's sparse library of table "cuda-simt" (sparse_host.cpp), as tests see it.
#include <cstdint>

namespace espalier::simt {

/// Products that it took, of all kinds, so far.
int64_t& library_products();

}  // namespace espalier::simt
