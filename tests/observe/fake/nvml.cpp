// A library with NVML's symbols that answers what a test tells it to: tests/observe/nvml_test.cpp.
#include <cstdint>
#include <cstring>

extern "C" {

struct FakeNvml {
  int init_code;
  int code;              // of every other call
  unsigned number;       // clocks, power, limit, temperature
  unsigned utilisation;  // percent
  unsigned long long used, total, bits, count;
  unsigned long long xids;  // left to deliver
  unsigned links;           // that exist; 0: no NVLink
  int calls, shutdowns;
  char bus[32];  // the only GPU
};

FakeNvml fake_nvml;

int nvmlInit_v2() {
  return fake_nvml.init_code;
}
int nvmlShutdown() {
  ++fake_nvml.shutdowns;
  return 0;
}
const char* nvmlErrorString(int code) {
  return code == 6 ? "Not Found" : "Some Error";
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) {
  if (std::strcmp(bus, fake_nvml.bus) != 0) return 6;
  *device = &fake_nvml;
  return 0;
}
static int answer(unsigned* out, unsigned value) {
  ++fake_nvml.calls;
  *out = value;
  return fake_nvml.code;
}
int nvmlDeviceGetUtilizationRates(void*, unsigned* two) {
  two[1] = 0;
  return answer(two, fake_nvml.utilisation);
}
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* three) {
  three[0] = fake_nvml.total;
  three[2] = fake_nvml.used;
  return fake_nvml.code;
}
int nvmlDeviceGetClockInfo(void*, int, unsigned* out) {
  return answer(out, fake_nvml.number);
}
int nvmlDeviceGetMaxClockInfo(void*, int, unsigned* out) {
  return answer(out, 2 * fake_nvml.number);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* out) {
  *out = fake_nvml.bits;
  return fake_nvml.code;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* out) {
  return answer(out, fake_nvml.number);
}
int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* out) {
  return answer(out, fake_nvml.number);
}
int nvmlDeviceGetTemperature(void*, int, unsigned* out) {
  return answer(out, fake_nvml.number);
}
int nvmlDeviceGetTotalEccErrors(void*, int, int, unsigned long long* out) {
  *out = fake_nvml.count;
  return fake_nvml.code;
}
int nvmlDeviceGetNvLinkErrorCounter(void*, unsigned link, int, unsigned long long* out) {
  if (fake_nvml.links == 0) return 3;
  if (link >= fake_nvml.links) return 2;
  *out = fake_nvml.count;
  return fake_nvml.code;
}
int nvmlEventSetCreate(void** set) {
  *set = &fake_nvml;
  return fake_nvml.code;
}
int nvmlDeviceRegisterEvents(void*, unsigned long long, void*) {
  return fake_nvml.code;
}
int nvmlEventSetWait_v2(void*, void* data, unsigned) {
  struct Event {
    void* device;
    unsigned long long type, data;
    unsigned a, b;
  };
  if (fake_nvml.code != 0) return fake_nvml.code;
  if (fake_nvml.xids == 0) return 10;
  --fake_nvml.xids;
  *static_cast<Event*>(data) = {nullptr, 8, 79, 0, 0};
  return 0;
}
int nvmlEventSetFree(void*) {
  return 0;
}

}  // extern "C"
