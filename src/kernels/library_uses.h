#pragma once
// Who computes: which engine of a library computes an operation of a shape on a device, or the
// reason why our own kernel does. For summary.json: a library that refuses a shape is otherwise
// seen only in the speed.
#include <map>
#include <string>

namespace espalier::kernels {

/// Both for the whole process, from any thread. A later record of an operation replaces the first.
void record_library_use(const std::string& operation, std::string who);
std::map<std::string, std::string> library_uses();

}  // namespace espalier::kernels
