// A disk whose N-th write, flush or rename fails: FAILING_DISK="CALL N ERRNO", for example
// "fsync 3 5" (EIO). Loaded before the C library (LD_PRELOAD).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

// Whether this call is the one that fails; sets errno.
static int fails(const char* call) {
  static int calls = 0;
  const char* setting = getenv("FAILING_DISK");
  char name[16];
  int number = 0, error = 0;
  if (setting == NULL || sscanf(setting, "%15s %d %d", name, &number, &error) != 3 ||
      strcmp(name, call) != 0 || __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) != number) {
    return 0;
  }
  errno = error;
  return 1;
}

int fsync(int file) {
  int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  return fails("fsync") ? -1 : real(file);
}

int rename(const char* from, const char* to) {
  int (*real)(const char*, const char*) =
      (int (*)(const char*, const char*))dlsym(RTLD_NEXT, "rename");
  return fails("rename") ? -1 : real(from, to);
}

ssize_t pwrite(int file, const void* data, size_t bytes, off_t offset) {
  ssize_t (*real)(int, const void*, size_t, off_t) =
      (ssize_t(*)(int, const void*, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
  return fails("pwrite") ? -1 : real(file, data, bytes, offset);
}
