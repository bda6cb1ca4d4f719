/* GPM: samples are taken of a GPU or of a GPU instance, metrics come from two samples of the same.
 *
 * A sample keeps the scenario of its moment, so the metrics are those that held when the second sample was taken, or
 * what they had grown by since the first one was.
 */
#include <stdlib.h>
#include "fake.h"

enum { SAMPLE_MAGIC = 0x53414d50, NO_INSTANCE = -1 };

struct nvmlGpmSample_st {
    uint32_t magic;
    Scenario *scenario; /* NULL: nothing was taken yet */
    const Device *device;
    uint32_t gpu;
    int64_t instance;
};

EXPORT nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *to) {
    if (!to) return NVML_ERROR_INVALID_ARGUMENT;
    if (to->version != NVML_GPM_SUPPORT_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const Out outs[] = {NUM(&to->isSupportedDevice)};
    return answer(FN_nvmlGpmQueryDeviceSupport, ANY, device, NO_ARGS, outs, 1);
}

EXPORT nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *to) {
    Call call;
    nvmlReturn_t rc = call_begin(&call, FN_nvmlGpmSampleAlloc, SYSTEM, NULL, &NO_ARGS);
    if (rc == NVML_SUCCESS && !to) rc = NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS) {
        *to = calloc(1, sizeof **to);
        (*to)->magic = SAMPLE_MAGIC;
        gauge_add(GAUGE_SAMPLES, 1);
    }
    return call_end(&call, rc);
}

EXPORT nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample) {
    Call call;
    nvmlReturn_t rc = call_begin(&call, FN_nvmlGpmSampleFree, SYSTEM, NULL, &NO_ARGS);
    if (rc == NVML_SUCCESS && (!sample || sample->magic != SAMPLE_MAGIC)) rc = NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS) {
        sample->magic = 0;
        scenario_release(sample->scenario);
        free(sample);
        gauge_add(GAUGE_SAMPLES, -1);
    }
    return call_end(&call, rc);
}

static Device *instance_of(const Device *gpu, unsigned int gi) {
    for (int m = 0; m < MAX_INSTANCES; m++)
        if (gpu->instances[m] && gpu->instances[m]->gi == gi) return gpu->instances[m];
    return NULL;
}

static nvmlReturn_t take(Fn fn, nvmlDevice_t handle, int64_t gi, nvmlGpmSample_t sample) {
    Call call;
    Args args = gi == NO_INSTANCE ? NO_ARGS : ARGS((uint32_t)gi);
    nvmlReturn_t rc = call_begin(&call, fn, GPU, handle, &args);
    const Device *d = call.device;
    if (rc == NVML_SUCCESS && (!sample || sample->magic != SAMPLE_MAGIC)) rc = NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS && gi != NO_INSTANCE && !(d = instance_of(d, (unsigned int)gi))) rc = NVML_ERROR_NOT_FOUND;
    if (rc == NVML_SUCCESS && !d->gpm.n) rc = NVML_ERROR_NOT_SUPPORTED;
    if (rc == NVML_SUCCESS) {
        Scenario *old = sample->scenario;
        scenario_hold(call.scenario);
        sample->scenario = call.scenario;
        sample->device = d;
        sample->gpu = call.device->handle;
        sample->instance = gi;
        scenario_release(old);
    }
    return call_end(&call, rc);
}

EXPORT nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample) {
    return take(FN_nvmlGpmSampleGet, device, NO_INSTANCE, sample);
}

EXPORT nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gi, nvmlGpmSample_t sample) {
    return take(FN_nvmlGpmMigSampleGet, device, gi, sample);
}

static bool pair(const struct nvmlGpmSample_st *a, const struct nvmlGpmSample_st *b) {
    return a && b && a != b && a->magic == SAMPLE_MAGIC && b->magic == SAMPLE_MAGIC && a->scenario && b->scenario &&
           a->gpu == b->gpu && a->instance == b->instance;
}

EXPORT nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get) {
    Call call;
    bool fits = get && get->numMetrics <= NVML_GPM_METRIC_MAX && pair(get->sample1, get->sample2);
    /* With a good pair the rules of its GPU hold, else only those of the system. */
    nvmlReturn_t rc = fits ? call_begin(&call, FN_nvmlGpmMetricsGet, GPU, handle_pointer(get->sample2->gpu), &NO_ARGS)
                           : call_begin(&call, FN_nvmlGpmMetricsGet, SYSTEM, NULL, &NO_ARGS);
    if (rc == NVML_SUCCESS && get && get->version != NVML_GPM_METRICS_GET_VERSION) rc = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (rc == NVML_SUCCESS && !fits) rc = NVML_ERROR_INVALID_ARGUMENT;
    /* The value: the first metric that this driver does not know; a request for it, or one beyond, fails as a whole. */
    const Value *unknown = rc == NVML_SUCCESS && call.entry && call.entry->n_values ? &call.entry->values[0] : NULL;
    for (unsigned int i = 0; unknown && i < get->numMetrics; i++)
        if (get->metrics[i].metricId >= unknown->number) rc = NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; rc == NVML_SUCCESS && i < get->numMetrics; i++) {
        nvmlGpmMetric_t *m = &get->metrics[i];
        const Keyed *k = keyed_find(&get->sample2->device->gpm, m->metricId);
        m->nvmlReturn = k ? (nvmlReturn_t)k->error : NVML_ERROR_NOT_SUPPORTED;
        m->value = m->nvmlReturn == NVML_SUCCESS ? k->value.real : 0.0;
        const Keyed *before = k && k->type ? keyed_find(&get->sample1->device->gpm, m->metricId) : NULL;
        if (before) m->value -= before->value.real;
    }
    return call_end(&call, rc);
}
