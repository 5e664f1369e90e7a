// A driver without devices, under the name of NVIDIA's driver. cuDNN compiles kernels for a
// described device and loads them through it; loading does nothing. cuDNN needs each of these
// names; those that it calls for a plan succeed.
namespace {

constexpr int kNoDevice = 100, kNotFound = 500;

int give(void** made) {
  static char anything[8];
  *made = anything;
  return 0;
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return kNoDevice; }
int cuGetExportTable(const void**, const void*) { return kNotFound; }
int cuDriverGetVersion(int* version) {
  *version = 13'000;
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = 0;
  return 0;
}
int cuGetErrorName(int, const char** text) {
  *text = "no driver";
  return 0;
}
int cuGetErrorString(int status, const char** text) { return cuGetErrorName(status, text); }
int cuLibraryLoadData(void** library) { return give(library); }
int cuLibraryLoadFromFile(void** library) { return give(library); }
int cuLibraryGetKernel(void** kernel) { return give(kernel); }
int cuKernelGetFunction(void** function) { return give(function); }
int cuLibraryUnload(void*) { return 0; }
int cuKernelSetAttribute() { return 0; }
int cuKernelGetAttribute(int* value) {
  *value = 0;
  return 0;
}

#define ESPALIER_REFUSED(name) \
  int name() { return kNoDevice; }
ESPALIER_REFUSED(cuCtxGetCurrent)
ESPALIER_REFUSED(cuCtxGetLimit)
ESPALIER_REFUSED(cuCtxPopCurrent)
ESPALIER_REFUSED(cuCtxPushCurrent)
ESPALIER_REFUSED(cuDeviceGet)
ESPALIER_REFUSED(cuLaunchCooperativeKernel)
ESPALIER_REFUSED(cuLaunchKernel)
ESPALIER_REFUSED(cuLaunchKernelEx)
ESPALIER_REFUSED(cuLinkAddData)
ESPALIER_REFUSED(cuLinkComplete)
ESPALIER_REFUSED(cuLinkCreate)
ESPALIER_REFUSED(cuLinkDestroy)
ESPALIER_REFUSED(cuOccupancyMaxPotentialClusterSize)
ESPALIER_REFUSED(cuStreamGetCtx)
}
