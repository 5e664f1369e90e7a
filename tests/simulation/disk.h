#pragma once
// Files of a simulated world.
#include "io/files/file_system.h"
#include "tests/simulation/world.h"

namespace espalier::simulation {

/// Called before the calling rank reads or changes a file. Returns the errno with which it must
/// fail; 0: none. `fills`: the change needs space. Of other threads than ranks it does nothing.
int touch_disk(Target target, bool fills = false);
/// Whether the calling rank's machine has a file that exists (Options::local_folder). `creates`: it
/// has it from now on.
bool finds_file(const std::filesystem::path& path, bool creates);

/// The system's calls, which the world of the calling rank may delay or fail.
class SimulatedDisk final : public io::FileSystem {
 public:
  int open(const std::filesystem::path& path, int flags) override;
  ssize_t read(int file, void* out, size_t bytes, uint64_t offset) override;
  ssize_t write(int file, const void* data, size_t bytes, uint64_t offset) override;
  int resize(int file, uint64_t size) override;
  int sync(int file) override;
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  int unlink(const std::filesystem::path& path) override;
  int make_folder(const std::filesystem::path& path) override;
};

}  // namespace espalier::simulation
