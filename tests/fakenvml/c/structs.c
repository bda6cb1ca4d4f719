/* Answers that are structs with texts or bytes in them, or arrays of words. */
#include <string.h>
#include "fake.h"

static int hex_digit(char c) { return c >= 'a' ? c - 'a' + 10 : c >= 'A' ? c - 'A' + 10 : c - '0'; }

/* Bytes from text such as "0f10"; a text that is shorter leaves zeros. */
static void bytes_of(const Value *v, unsigned char *to, size_t size) {
    memset(to, 0, size);
    for (size_t i = 0; v->kind == TEXT && i < size && v->text[2 * i]; i++)
        to[i] = (unsigned char)(hex_digit(v->text[2 * i]) << 4 | hex_digit(v->text[2 * i + 1]));
}

/* The values: state, status, clique id, health mask; then, from a driver that knows version 3, the health summary; then
 * the cluster's UUID in hex digits. */
EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *to) {
    if (!to) return NVML_ERROR_INVALID_ARGUMENT;
    if (to->version != nvmlGpuFabricInfo_v2 && to->version != nvmlGpuFabricInfo_v3) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    Call call;
    nvmlReturn_t rc = call_begin(&call, FN_nvmlDeviceGetGpuFabricInfoV, ANY, device, &NO_ARGS);
    const Entry *e = call.entry;
    const Out outs[] = {NUM(&to->state), NUM(&to->status), NUM(&to->cliqueId), NUM(&to->healthMask), NUM(&to->healthSummary)};
    bool newer = to->version == nvmlGpuFabricInfo_v3;
    if (rc == NVML_SUCCESS && newer && e && e->has_values && e->n_values < 5) rc = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (rc == NVML_SUCCESS) rc = put_values(e, outs, newer ? 5 : 4);
    if (rc == NVML_SUCCESS && e->n_values > 5) bytes_of(&e->values[5], to->clusterUuid, sizeof to->clusterUuid);
    return call_end(&call, rc);
}

/* The values: slot, tray, host, peer type, module; then the GUID in hex digits and the serial number of the chassis. */
EXPORT nvmlReturn_t nvmlDeviceGetPlatformInfo(nvmlDevice_t device, nvmlPlatformInfo_t *to) {
    if (!to) return NVML_ERROR_INVALID_ARGUMENT;
    if (to->version != nvmlPlatformInfo_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    Call call;
    nvmlReturn_t rc = call_begin(&call, FN_nvmlDeviceGetPlatformInfo, ANY, device, &NO_ARGS);
    const Entry *e = call.entry;
    const Out outs[] = {NUM(&to->slotNumber), NUM(&to->trayIndex), NUM(&to->hostId), NUM(&to->peerType), NUM(&to->moduleId)};
    if (rc == NVML_SUCCESS) rc = put_values(e, outs, 5);
    if (rc == NVML_SUCCESS) {
        memset(to->ibGuid, 0, sizeof to->ibGuid);
        memset(to->chassisSerialNumber, 0, sizeof to->chassisSerialNumber);
        if (e->n_values > 5) bytes_of(&e->values[5], to->ibGuid, sizeof to->ibGuid);
        if (e->n_values > 6) strncpy((char *)to->chassisSerialNumber, e->values[6].text, sizeof to->chassisSerialNumber);
    }
    return call_end(&call, rc);
}

/* The values: environment, confidential compute feature, mode of development tools. */
EXPORT nvmlReturn_t nvmlSystemGetConfComputeState(nvmlConfComputeSystemState_t *to) {
    if (!to) return NVML_ERROR_INVALID_ARGUMENT;
    const Out outs[] = {NUM(&to->environment), NUM(&to->ccFeature), NUM(&to->devToolsMode)};
    return answer(FN_nvmlSystemGetConfComputeState, SYSTEM, NULL, NO_ARGS, outs, (int)COUNT_OF(outs));
}

/* No values: "=" says that the InfoROM is valid. */
EXPORT nvmlReturn_t nvmlDeviceValidateInforom(nvmlDevice_t device) {
    return answer(FN_nvmlDeviceValidateInforom, GPU, device, NO_ARGS, NULL, 0);
}

/* The values: the flag, and whether the driver takes the struct to begin with a version, which nvml.h does not say. */
EXPORT nvmlReturn_t nvmlDeviceGetUnrepairableMemoryFlag_v1(nvmlDevice_t device, nvmlUnrepairableMemoryStatus_v1_t *to) {
    unsigned int flag = 0, versioned = 0;
    const Out outs[] = {NUM(&flag), NUM(&versioned)};
    nvmlReturn_t rc = answer(FN_nvmlDeviceGetUnrepairableMemoryFlag_v1, GPU, device, NO_ARGS, outs, 2);
    if (rc == NVML_SUCCESS) (&to->bUnrepairableMemory)[versioned ? 1 : 0] = flag;
    return rc;
}

static nvmlReturn_t words_of(Fn fn, nvmlDevice_t device, unsigned int size, unsigned long *words) {
    Call call;
    nvmlReturn_t rc = call_begin(&call, fn, ANY, device, &NO_ARGS);
    if (rc == NVML_SUCCESS && (!size || !words)) rc = NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS && (!call.entry || !call.entry->has_values)) rc = NVML_ERROR_NOT_SUPPORTED;
    for (unsigned int i = 0; rc == NVML_SUCCESS && i < size; i++)
        words[i] = (int)i < call.entry->n_values ? call.entry->values[i].number : 0;
    return call_end(&call, rc);
}

/* The values: words of 64 CPUs (or NUMA nodes); words that were not said are 0. */
EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int size, unsigned long *words) {
    return words_of(FN_nvmlDeviceGetCpuAffinity, device, size, words);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int size, unsigned long *words,
                                                nvmlAffinityScope_t scope) {
    (void)scope;
    return words_of(FN_nvmlDeviceGetMemoryAffinity, device, size, words);
}
