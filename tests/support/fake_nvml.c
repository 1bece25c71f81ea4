/* A driver's library of two linked GPUs (1, 2) and one in MIG mode (3, with instances 31 and 33). Handles are numbers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };
struct memory { unsigned long long total, free, used; };
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };

static long number(void *handle) { return (long)handle; }

int nvmlInitWithFlags(unsigned flags) { return OK; }
int nvmlInit_v2(void) { return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int error) { return "an error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    *handle = (void *)(long)(index + 1);
    return index < 3 ? OK : INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    *handle = (void *)atol(strchr(uuid, '-') + 1);
    return *handle ? OK : NOT_FOUND;
}

int nvmlDeviceGetName(void *handle, char *name, unsigned length) {
    snprintf(name, length, number(handle) > 9 ? "NVIDIA H100 80GB HBM3 MIG 1g.10gb" : "NVIDIA H100 80GB HBM3");
    return OK;
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned length) {
    snprintf(uuid, length, "%s-%ld", number(handle) > 9 ? "MIG" : "GPU", number(handle));
    return OK;
}

int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory) {
    memory->total = (number(handle) > 9 ? 10ULL : 80ULL) << 30;
    memory->used = (unsigned long long)number(handle) << 30;
    memory->free = memory->total - memory->used;
    return OK;
}

struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };

int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory_v2 *memory) {
    memory->total = (number(handle) > 9 ? 10ULL : 80ULL) << 30;
    memory->reserved = 1ULL << 29;
    memory->used = ((unsigned long long)number(handle) << 30) - memory->reserved;
    memory->free = memory->total - memory->used - memory->reserved;
    return OK;
}

int nvmlDeviceGetComputeMode(void *handle, unsigned *mode) { *mode = number(handle) == 1 ? 3 : 0; return OK; }

int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *pending) {
    *now = *pending = number(handle) == 3;
    return number(handle) == 2 ? NOT_SUPPORTED : OK;
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) { *count = 7; return OK; }

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **instance) {
    *instance = (void *)(long)(31 + index);
    return index == 0 || index == 2 ? OK : NOT_FOUND;
}

int nvmlDeviceGetGpuInstanceId(void *handle, unsigned *id) { *id = number(handle); return OK; }

int nvmlDeviceGetComputeInstanceId(void *handle, unsigned *id) { *id = 0; return OK; }

int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *pci) {
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:0%ld:00.0", number(handle));
    return OK;
}

int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, unsigned *level) { *level = 30; return OK; }

int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *active) {
    *active = link < 3;
    return link < 4 ? OK : INVALID_ARGUMENT;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, unsigned *type) { *type = 0; return OK; }

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, struct pci *pci) {
    return nvmlDeviceGetPciInfo_v3((void *)(3 - number(handle)), pci);
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, struct process *processes) {
    if (*count < 2) return *count = 2, INSUFFICIENT_SIZE;
    *count = 2;
    processes[0] = (struct process){77, 5ULL << 30, 0, 0};
    processes[1] = (struct process){78, ~0ULL, 0, 0}; /* not available */
    return OK;
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *handle, unsigned *count, struct process *processes) {
    *count = 0;
    return OK;
}

struct utilisation { unsigned gpu, memory; };
struct event { void *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; };
static int told; /* the second GPU has an error 79, told once */

int nvmlDeviceGetMinorNumber(void *handle, unsigned *minor) { *minor = number(handle) - 1; return OK; }
int nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *celsius) { *celsius = 40 + sensor; return OK; }
int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) { *milliwatts = 123456; return OK; }
int nvmlDeviceGetClockInfo(void *handle, unsigned type, unsigned *mhz) { *mhz = type == 1 ? 1980 : 1; return OK; }

int nvmlDeviceGetUtilizationRates(void *handle, struct utilisation *found) {
    *found = (struct utilisation){25, 50};
    return OK;
}

int nvmlDeviceGetTotalEccErrors(void *handle, unsigned error, unsigned counter, unsigned long long *count) {
    *count = error == 1 && counter == 0 ? number(handle) : 77;
    return number(handle) == 1 ? NOT_SUPPORTED : OK;
}

int nvmlEventSetCreate(void **set) { *set = &told; return OK; }
int nvmlEventSetFree(void *set) { return OK; }
int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, void *set) { return types == 8 ? OK : NOT_FOUND; }

int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout_ms) {
    if (told++) return TIMEOUT;
    *event = (struct event){(void *)2L, 8, 79, 0, 0};
    return OK;
}

int nvmlDeviceGetRemappedRows(void *handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    *corrected = *uncorrected = *failed = 0;
    *pending = number(handle) == 3;
    return number(handle) == 1 ? NOT_SUPPORTED : OK;
}

int nvmlDeviceGetRetiredPagesPendingStatus(void *handle, unsigned *pending) { return NOT_SUPPORTED; }
