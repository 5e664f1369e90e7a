#pragma once
// The host's sparse library of table "cuda-simt" (sparse_host.cpp): the interface for tests.
#include <cstdint>

namespace espalier::simt {

/// Products computed by the library so far, of all kinds.
int64_t& library_products();

}  // namespace espalier::simt
