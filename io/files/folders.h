#pragma once
// Names in folders: made, renamed and removed so that they survive a loss of power. Each change of
// a name is on the disk when the call returns, except that of `remove_file`. A folder that may be
// written but not read (EACCES) cannot be flushed: that is no error.
#include <filesystem>
#include <string>
#include <vector>

namespace espalier::io {

/// False if there is no such file or folder. Any other cause (permissions, a failed disk) throws
/// Failure: an unreadable run is no missing run.
bool path_exists(const std::filesystem::path& path);
/// The paths of a folder's entries, sorted by name; none if there is no such folder.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder);

/// The names in a folder, to the disk.
void sync_folder(const std::filesystem::path& folder);
/// False if the path exists already.
bool make_folder(const std::filesystem::path& path);
/// Throws Failure, with the cause and a fix, unless `folder` is a folder that may be written, or
/// may be made: then the nearest path above it that exists is such a folder.
void check_folder(const std::filesystem::path& folder);
/// Makes the folder of `path` and those above it. Throws Failure as check_folder does.
void make_folder_of(const std::filesystem::path& path);
/// Throws Failure if `path` exists and is no ordinary file (nor a link to one): a rename would
/// replace a device or a pipe.
void check_replaceable(const std::filesystem::path& path);
/// The temporary name of a file that will replace `path`: checks the target, makes its folder, and
/// removes `abandoned_of(path)` and what an earlier process with our PID left.
std::filesystem::path make_way_for(const std::filesystem::path& path);
/// Renames `temporary` to `path`, in the same folder.
void publish(const std::filesystem::path& temporary, const std::filesystem::path& path);
/// Removes a file, if it exists. After a crash it may exist again until `sync_folder`.
void remove_file(const std::filesystem::path& path);

/// The name of this machine.
std::string host_name();
/// `path.tmp-PID-HOST`, beside the file it will replace.
std::filesystem::path temporary_name(const std::filesystem::path& path);
/// Whether `path` is a temporary file of a process of this machine that has ended. Those of other
/// machines cannot be judged.
bool is_abandoned(const std::filesystem::path& path);
/// Abandoned temporary files or folders that would have replaced `path`; none if their folder
/// cannot be read. Cost: reads the folder.
std::vector<std::filesystem::path> abandoned_of(const std::filesystem::path& path);
/// Removes the abandoned temporary files of a folder. Best effort.
void remove_abandoned(const std::filesystem::path& folder);

}  // namespace espalier::io
