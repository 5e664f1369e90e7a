// A disk whose fsync takes SLOW_DISK_SECONDS: loaded before the C library (LD_PRELOAD).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

int fsync(int file) {
  const char* seconds = getenv("SLOW_DISK_SECONDS");
  if (seconds != NULL) {
    const double value = atof(seconds);
    struct timespec delay = {(time_t)value, (long)((value - (double)(time_t)value) * 1e9)};
    while (nanosleep(&delay, &delay) != 0) {
    }
  }
  int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  return real(file);
}
