/* The system, finding devices, and the answers that are lists. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "fake.h"

#define SYSTEM_ROW(name, params, ...)                                                        \
    EXPORT nvmlReturn_t name params {                                                        \
        const Out outs[] = {__VA_ARGS__};                                                    \
        return answer(FN_##name, SYSTEM, NULL, NO_ARGS, outs, (int)COUNT_OF(outs));          \
    }

SYSTEM_ROW(nvmlSystemGetDriverVersion, (char *a, unsigned int length), STR(a, length))
SYSTEM_ROW(nvmlSystemGetNVMLVersion, (char *a, unsigned int length), STR(a, length))
SYSTEM_ROW(nvmlSystemGetCudaDriverVersion, (int *a), NUM(a))
SYSTEM_ROW(nvmlSystemGetCudaDriverVersion_v2, (int *a), NUM(a))
SYSTEM_ROW(nvmlDeviceGetCount_v2, (unsigned int *a), NUM(a))

static const char *const error_words[] = {
    "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized",
    "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded", "Timeout",
    "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost",
    "GPU requires reset", "The operating system has blocked the request", "Driver/library version mismatch", "In use",
    "Insufficient Memory", "No data", "vGPU ECC not supported", "Insufficient resources", "Frequency not supported",
    "Argument version mismatch", "Deprecated", "Not ready", "GPU not found", "Invalid state", "Reset type not supported",
};

EXPORT const char *nvmlErrorString(nvmlReturn_t rc) {
    count_call(FN_nvmlErrorString, -1);
    return (size_t)rc < COUNT_OF(error_words) ? error_words[rc] : "Unknown Error";
}

/* ---- finding devices ---- */

static nvmlReturn_t give(Call *call, Fn fn, Device *d, const Args *args, nvmlDevice_t *to) {
    if (!d) return NVML_ERROR_NOT_FOUND;
    uint32_t id = d->handle;
    nvmlReturn_t rc = call_device(call, fn, d, args);
    if (rc == NVML_SUCCESS) *to = handle_pointer(id);
    return rc;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    Call call;
    Args args = ARGS(index);
    nvmlReturn_t rc = call_begin(&call, FN_nvmlDeviceGetHandleByIndex_v2, SYSTEM, NULL, &args);
    if (rc == NVML_SUCCESS && (!device || index >= (unsigned int)call.scenario->n_gpus)) rc = NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS)
        rc = give(&call, FN_nvmlDeviceGetHandleByIndex_v2, call.scenario->by_index[index], &NO_ARGS, device);
    return call_end(&call, rc);
}

typedef bool Matches(const Device *d, const char *wanted);

static bool has_uuid(const Device *d, const char *wanted) { return strcmp(d->uuid, wanted) == 0; }

static const char *said(const Device *d, Fn fn) {
    const Entry *e = entry_find(d, fn, &NO_ARGS);
    return e && e->n_values && e->values[0].kind == TEXT ? e->values[0].text : "";
}

static bool has_serial(const Device *d, const char *wanted) {
    return !d->parent && strcmp(said(d, FN_nvmlDeviceGetSerial), wanted) == 0;
}

static bool parse_bus_id(const char *text, unsigned int *domain, unsigned int *bus, unsigned int *device) {
    if (sscanf(text, "%x:%x:%x.", domain, bus, device) == 3) return true;
    *domain = 0;
    return sscanf(text, "%x:%x.", bus, device) == 2;
}

static bool has_bus_id(const Device *d, const char *wanted) {
    unsigned int a[3], b[3];
    return !d->parent && parse_bus_id(wanted, &a[0], &a[1], &a[2]) &&
           parse_bus_id(said(d, FN_nvmlDeviceGetPciInfo_v3), &b[0], &b[1], &b[2]) && memcmp(a, b, sizeof a) == 0;
}

static Device *search(const Scenario *s, Matches *matches, const char *wanted) {
    for (int i = 0; i < s->n_gpus; i++) {
        Device *d = s->by_index[i];
        if (matches(d, wanted)) return d;
        for (int m = 0; m < MAX_INSTANCES; m++)
            if (d->instances[m] && !d->instances[m]->gone && matches(d->instances[m], wanted)) return d->instances[m];
    }
    return NULL;
}

static nvmlReturn_t handle_by(Fn fn, Matches *matches, const char *wanted, nvmlDevice_t *device) {
    Call call;
    nvmlReturn_t rc = call_begin(&call, fn, SYSTEM, NULL, &NO_ARGS);
    if (rc == NVML_SUCCESS && (!device || !wanted)) rc = NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS) rc = give(&call, fn, search(call.scenario, matches, wanted), &NO_ARGS, device);
    return call_end(&call, rc);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    return handle_by(FN_nvmlDeviceGetHandleByUUID, has_uuid, uuid, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    return handle_by(FN_nvmlDeviceGetHandleByPciBusId_v2, has_bus_id, bus_id, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device) {
    return handle_by(FN_nvmlDeviceGetHandleBySerial, has_serial, serial, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig) {
    Call call;
    Args args = ARGS(index);
    nvmlReturn_t rc = call_begin(&call, FN_nvmlDeviceGetMigDeviceHandleByIndex, GPU, device, &args);
    if (rc == NVML_SUCCESS) {
        const Entry *most = entry_find(call.device, FN_nvmlDeviceGetMaxMigDeviceCount, &NO_ARGS);
        Device *d = index < MAX_INSTANCES ? call.device->instances[index] : NULL;
        if (!mig) rc = NVML_ERROR_INVALID_ARGUMENT;
        else if (d && !d->gone) *mig = handle_pointer(d->handle);
        else if (!most || !most->n_values) rc = NVML_ERROR_NOT_SUPPORTED;
        else rc = index < most->values[0].number ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INVALID_ARGUMENT;
    }
    return call_end(&call, rc);
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device) {
    Call call;
    nvmlReturn_t rc = call_begin(&call, FN_nvmlDeviceGetDeviceHandleFromMigDeviceHandle, INSTANCE, mig, &NO_ARGS);
    if (rc == NVML_SUCCESS && !device) rc = NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS) *device = handle_pointer(call.device->parent->handle);
    return call_end(&call, rc);
}

/* The handle of a GPU instance is that of its first MIG device. */
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance) {
    Call call;
    Args args = ARGS(id);
    nvmlReturn_t rc = call_begin(&call, FN_nvmlDeviceGetGpuInstanceById, GPU, device, &args);
    if (rc == NVML_SUCCESS) {
        if (!instance) rc = NVML_ERROR_INVALID_ARGUMENT;
        else rc = NVML_ERROR_NOT_FOUND;
        for (int m = 0; instance && m < MAX_INSTANCES; m++) {
            Device *d = call.device->instances[m];
            if (!d || d->gone || d->gi != id) continue;
            *instance = (nvmlGpuInstance_t)handle_pointer(d->handle);
            rc = NVML_SUCCESS;
            break;
        }
    }
    return call_end(&call, rc);
}

/* The values: profile id, first memory slice, number of memory slices. */
EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *to) {
    nvmlGpuInstanceInfo_t got = {0};
    const Out outs[] = {NUM(&got.profileId), NUM(&got.placement.start), NUM(&got.placement.size)};
    nvmlReturn_t rc = answer(FN_nvmlGpuInstanceGetInfo, INSTANCE, (nvmlDevice_t)instance, NO_ARGS, outs, (int)COUNT_OF(outs));
    if (rc != NVML_SUCCESS) return rc;
    if (!to) return NVML_ERROR_INVALID_ARGUMENT;
    *to = got;
    return NVML_SUCCESS;
}

/* The values: "00000000:53:00.0" device-id subsystem-id. */
EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    nvmlPciInfo_t got = {0};
    const Out outs[] = {STR(got.busId, sizeof got.busId), NUM(&got.pciDeviceId), NUM(&got.pciSubSystemId)};
    nvmlReturn_t rc = answer(FN_nvmlDeviceGetPciInfo_v3, ANY, device, NO_ARGS, outs, (int)COUNT_OF(outs));
    if (rc != NVML_SUCCESS) return rc;
    if (!pci) return NVML_ERROR_INVALID_ARGUMENT;
    parse_bus_id(got.busId, &got.domain, &got.bus, &got.device);
    snprintf(got.busIdLegacy, sizeof got.busIdLegacy, "%04X:%02X:%02X.0", got.domain & 0xffff, got.bus & 0xff, got.device & 0xff);
    *pci = got;
    return NVML_SUCCESS;
}

/* ---- two GPUs: the arguments are the slot of the other one and the index ---- */

EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t peer, nvmlGpuP2PCapsIndex_t x, nvmlGpuP2PStatus_t *to) {
    uint32_t id, slot = MAX_GPUS;
    bool lost = false;
    Scenario *s = scenario_acquire();
    if (s && handle_id(peer, &id) && id < s->n_handles && s->by_handle[id]) {
        slot = (uint32_t)s->by_handle[id]->slot;
        lost = s->by_handle[id]->lost || s->by_handle[id]->gone;
    }
    scenario_release(s);
    Call call;
    Args args = ARGS(slot, x);
    nvmlReturn_t rc = call_begin(&call, FN_nvmlDeviceGetP2PStatus, GPU, device, &args);
    if (rc == NVML_SUCCESS && (slot == MAX_GPUS || !to)) rc = NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS && lost) rc = NVML_ERROR_GPU_IS_LOST;
    if (rc == NVML_SUCCESS) rc = put_values(call.entry, (const Out[]){NUM(to)}, 1);
    return call_end(&call, rc);
}

/* ---- field values: the call succeeds, each field has its own code ---- */

static long long now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (long long)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void put_field(const Device *d, nvmlFieldValue_t *to, long long at) {
    const Keyed *k = keyed_find(&d->fields, field_key(to->fieldId, to->scopeId));
    to->nvmlReturn = k ? (nvmlReturn_t)k->error : NVML_ERROR_NOT_SUPPORTED;
    to->timestamp = at;
    to->latencyUsec = 0;
    memset(&to->value, 0, sizeof to->value);
    if (to->nvmlReturn != NVML_SUCCESS) return;
    to->valueType = (nvmlValueType_t)k->type;
    if (k->type != NVML_VALUE_TYPE_DOUBLE) memcpy(&to->value, &k->value.number, sizeof to->value);
    else to->value.dVal = k->value.kind == REAL ? k->value.real : (double)k->value.number;
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int n, nvmlFieldValue_t *values) {
    Call call;
    nvmlReturn_t rc = call_begin(&call, FN_nvmlDeviceGetFieldValues, ANY, device, &NO_ARGS);
    if (rc == NVML_SUCCESS && (n <= 0 || !values)) rc = NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS) {
        long long at = now_us();
        for (int i = 0; i < n; i++) put_field(call.device, &values[i], at);
    }
    return call_end(&call, rc);
}

/* ---- lists: *count says how much room there is and then how many there are ---- */

static nvmlReturn_t room_for(const Entry *e, int width, unsigned int *count, const void *to, unsigned int *n) {
    if (!e || !e->has_values) return NVML_ERROR_NOT_SUPPORTED;
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    *n = (unsigned int)(e->n_values / width);
    bool fits = *n <= *count && (to || !*n);
    *count = *n;
    return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

/* The values of a process: pid, bytes, GPU instance, compute instance. The first releases of 535 had one more word in
 * each entry of _v3; they are those that know confidential computing and not yet the list of details. _v2 answers what
 * _v3 does. */
static nvmlReturn_t processes(Fn fn, Fn answers, nvmlDevice_t device, unsigned int *count, void *to) {
    Call call;
    unsigned int n = 0;
    nvmlReturn_t rc = call_begin(&call, fn, ANY, device, &NO_ARGS);
    const Entry *e = rc == NVML_SUCCESS ? entry_find(call.device, answers, &NO_ARGS) : NULL;
    if (rc == NVML_SUCCESS) rc = room_for(e, 4, count, to, &n);
    if (rc == NVML_SUCCESS && n) {
        const bool *missing = call.scenario->missing;
        bool wide = fn == answers && missing[FN_nvmlDeviceGetRunningProcessDetailList] &&
                    !missing[FN_nvmlDeviceGetConfComputeMemSizeInfo];
        for (unsigned int i = 0; i < n; i++) {
            const Value *v = &e->values[4 * i];
            nvmlProcessDetail_v1_t p = {(unsigned int)v[0].number, v[1].number, (unsigned int)v[2].number,
                                        (unsigned int)v[3].number, 0x77777777};
            size_t size = wide ? sizeof p : sizeof(nvmlProcessInfo_t);
            memcpy((char *)to + i * size, &p, size);
        }
    }
    return call_end(&call, rc);
}

#define PROCESSES(name)                                                                              \
    EXPORT nvmlReturn_t name##_v3(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_t *to) {          \
        return processes(FN_##name##_v3, FN_##name##_v3, d, n, to);                                  \
    }                                                                                                \
    EXPORT nvmlReturn_t name##_v2(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_v2_t *to) {       \
        return processes(FN_##name##_v2, FN_##name##_v3, d, n, to);                                  \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)

/* It is looked for and never asked. */
EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list) {
    Call call;
    nvmlReturn_t rc = call_begin(&call, FN_nvmlDeviceGetRunningProcessDetailList, ANY, device, &NO_ARGS);
    if (rc == NVML_SUCCESS) rc = list ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
    return call_end(&call, rc);
}

/* The values of a sample: pid, time stamp, SM, memory, encoder, decoder. Only samples after `since` are given. */
EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *to,
                                                    unsigned int *count, unsigned long long since) {
    Call call;
    nvmlReturn_t rc = call_begin(&call, FN_nvmlDeviceGetProcessUtilization, GPU, device, &NO_ARGS);
    const Entry *e = call.entry;
    if (rc == NVML_SUCCESS && (!e || !e->has_values)) rc = NVML_ERROR_NOT_SUPPORTED;
    if (rc == NVML_SUCCESS && !count) rc = NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS) {
        unsigned int fresh = 0, room = to ? *count : 0;
        for (int i = 0; i + 6 <= e->n_values; i += 6) {
            const Value *v = &e->values[i];
            if (v[1].number <= since) continue;
            if (fresh < room)
                to[fresh] = (nvmlProcessUtilizationSample_t){
                    (unsigned int)v[0].number, v[1].number, (unsigned int)v[2].number,
                    (unsigned int)v[3].number, (unsigned int)v[4].number, (unsigned int)v[5].number};
            fresh++;
        }
        *count = fresh;
        rc = fresh == 0 ? NVML_ERROR_NOT_FOUND : fresh > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
    }
    return call_end(&call, rc);
}

/* The values of a sample: as above, then JPEG and optical flow. */
EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *to) {
    if (!to) return NVML_ERROR_INVALID_ARGUMENT;
    if (to->version != nvmlProcessesUtilizationInfo_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    Call call;
    nvmlReturn_t rc = call_begin(&call, FN_nvmlDeviceGetProcessesUtilizationInfo, GPU, device, &NO_ARGS);
    const Entry *e = call.entry;
    if (rc == NVML_SUCCESS && (!e || !e->has_values)) rc = NVML_ERROR_NOT_SUPPORTED;
    if (rc == NVML_SUCCESS) {
        unsigned int fresh = 0, room = to->procUtilArray ? to->processSamplesCount : 0;
        for (int i = 0; i + 8 <= e->n_values; i += 8) {
            const Value *v = &e->values[i];
            if (v[1].number <= to->lastSeenTimeStamp) continue;
            if (fresh < room)
                to->procUtilArray[fresh] = (nvmlProcessUtilizationInfo_v1_t){
                    .timeStamp = v[1].number, .pid = (unsigned int)v[0].number, .smUtil = (unsigned int)v[2].number,
                    .memUtil = (unsigned int)v[3].number, .encUtil = (unsigned int)v[4].number,
                    .decUtil = (unsigned int)v[5].number, .jpgUtil = (unsigned int)v[6].number,
                    .ofaUtil = (unsigned int)v[7].number};
            fresh++;
        }
        to->processSamplesCount = fresh;
        rc = fresh == 0 ? NVML_ERROR_NOT_FOUND : fresh > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
    }
    return call_end(&call, rc);
}

/* The values of a sample: time stamp, value. Without room for them all that are kept are counted. */
EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long since,
                                         nvmlValueType_t *kind, unsigned int *count, nvmlSample_t *to) {
    Call call;
    Args args = ARGS(type);
    nvmlReturn_t rc = call_begin(&call, FN_nvmlDeviceGetSamples, GPU, device, &args);
    const Entry *e = call.entry;
    if (rc == NVML_SUCCESS && (!e || !e->has_values)) rc = NVML_ERROR_NOT_SUPPORTED;
    if (rc == NVML_SUCCESS && (!kind || !count || (to && !*count))) rc = NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS) {
        unsigned int n = 0, room = to ? *count : (unsigned int)e->n_values / 2;
        for (int i = 0; i + 2 <= e->n_values && n < room; i += 2) {
            if (to && e->values[i].number <= since && since) continue;
            if (to) {
                memset(&to[n], 0, sizeof to[n]);
                to[n].timeStamp = e->values[i].number;
                to[n].sampleValue.uiVal = (unsigned int)e->values[i + 1].number;
            }
            n++;
        }
        *kind = NVML_VALUE_TYPE_UNSIGNED_INT;
        *count = n;
        if (!n) rc = NVML_ERROR_NOT_FOUND;
    }
    return call_end(&call, rc);
}

/* The values of a retired page: its address, and in _v2 the time stamp after it. */
static nvmlReturn_t pages(Fn fn, int width, nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                          unsigned long long *addresses, unsigned long long *stamps) {
    Call call;
    Args args = ARGS(cause);
    unsigned int n = 0;
    nvmlReturn_t rc = call_begin(&call, fn, ANY, device, &args);
    if (rc == NVML_SUCCESS) rc = room_for(call.entry, width, count, addresses, &n);
    for (unsigned int i = 0; rc == NVML_SUCCESS && i < n; i++) {
        addresses[i] = call.entry->values[(unsigned)width * i].number;
        if (stamps) stamps[i] = call.entry->values[(unsigned)width * i + 1].number;
    }
    return call_end(&call, rc);
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                              unsigned long long *addresses) {
    return pages(FN_nvmlDeviceGetRetiredPages, 1, device, cause, count, addresses, NULL);
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                                 unsigned long long *addresses, unsigned long long *stamps) {
    return pages(FN_nvmlDeviceGetRetiredPages_v2, 2, device, cause, count, addresses, stamps);
}

/* The values: supported, then for each feature: code, state, "licence", "product", enabled. */
EXPORT nvmlReturn_t nvmlDeviceGetGridLicensableFeatures_v4(nvmlDevice_t device, nvmlGridLicensableFeatures_t *to) {
    Call call;
    nvmlReturn_t rc = call_begin(&call, FN_nvmlDeviceGetGridLicensableFeatures_v4, ANY, device, &NO_ARGS);
    const Entry *e = call.entry;
    if (rc == NVML_SUCCESS && (!e || !e->n_values)) rc = NVML_ERROR_NOT_SUPPORTED;
    if (rc == NVML_SUCCESS && !to) rc = NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS) {
        memset(to, 0, sizeof *to);
        to->isGridLicenseSupported = (int)e->values[0].number;
        for (int i = 1; i + 5 <= e->n_values && to->licensableFeaturesCount < NVML_GRID_LICENSE_FEATURE_MAX_COUNT; i += 5) {
            nvmlGridLicensableFeature_t *f = &to->gridLicensableFeatures[to->licensableFeaturesCount++];
            const Value *v = &e->values[i];
            f->featureCode = (nvmlGridLicenseFeatureCode_t)v[0].number;
            f->featureState = (unsigned int)v[1].number;
            if (v[2].kind == TEXT) strncpy(f->licenseInfo, v[2].text, sizeof f->licenseInfo - 1);
            if (v[3].kind == TEXT) strncpy(f->productName, v[3].text, sizeof f->productName - 1);
            f->featureEnabled = (unsigned int)v[4].number;
        }
    }
    return call_end(&call, rc);
}
