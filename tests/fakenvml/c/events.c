/* Events: every event of a GPU comes once, in the order of their numbers, those already in the file too; a later set
 * begins behind what one before has given since nvmlInit. A wait on a set with a lost GPU in it fails, but for what
 * has happened before. */
#include <stdlib.h>
#include "fake.h"

enum { SET_MAGIC = 0x45565453, POLL_US = 10000 };

struct nvmlEventSet_st {
    uint32_t magic;
    pthread_mutex_t lock;
    uint64_t last_seq;
    struct {
        uint32_t handle;
        uint64_t types;
    } registered[MAX_GPUS];
    int n;
};

static _Atomic uint64_t given_seq;

static atomic_bool hurried; /* a wait for events ends at its next look */

EXPORT void fakenvml_hurry(int on) { atomic_store(&hurried, on != 0); }

void events_restart(void) { atomic_store(&given_seq, 0); }

static bool valid(nvmlEventSet_t set) { return set && set->magic == SET_MAGIC; }

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *to) {
    Call call;
    nvmlReturn_t rc = call_begin(&call, FN_nvmlEventSetCreate, SYSTEM, NULL, &NO_ARGS);
    if (rc == NVML_SUCCESS && !to) rc = NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS) {
        *to = calloc(1, sizeof **to);
        (*to)->magic = SET_MAGIC;
        pthread_mutex_init(&(*to)->lock, NULL);
        (*to)->last_seq = atomic_load(&given_seq);
        gauge_add(GAUGE_EVENT_SETS, 1);
    }
    return call_end(&call, rc);
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    Call call;
    nvmlReturn_t rc = call_begin(&call, FN_nvmlEventSetFree, SYSTEM, NULL, &NO_ARGS);
    if (rc == NVML_SUCCESS && !valid(set)) rc = NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS) {
        set->magic = 0;
        pthread_mutex_destroy(&set->lock);
        free(set);
        gauge_add(GAUGE_EVENT_SETS, -1);
    }
    return call_end(&call, rc);
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    Call call;
    nvmlReturn_t rc = call_begin(&call, FN_nvmlDeviceRegisterEvents, GPU, device, &NO_ARGS);
    if (rc == NVML_SUCCESS && !valid(set)) rc = NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS) {
        const Entry *can = entry_find(call.device, FN_nvmlDeviceGetSupportedEventTypes, &NO_ARGS);
        pthread_mutex_lock(&set->lock);
        if (!can || !can->n_values || (types & ~can->values[0].number)) rc = NVML_ERROR_NOT_SUPPORTED;
        else if (set->n == MAX_GPUS) rc = NVML_ERROR_INSUFFICIENT_RESOURCES;
        else {
            set->registered[set->n].handle = call.device->handle;
            set->registered[set->n++].types = types;
        }
        pthread_mutex_unlock(&set->lock);
    }
    return call_end(&call, rc);
}

static bool wants_event(nvmlEventSet_t set, const Scenario *s, const Event *e) {
    const Device *d = s->gpus[e->slot];
    for (int i = 0; d && i < set->n; i++)
        if (set->registered[i].handle == d->handle && (set->registered[i].types & e->type)) return true;
    return false;
}

static bool next_event(nvmlEventSet_t set, const Scenario *s, nvmlEventData_t *to) {
    const Event *first = NULL;
    pthread_mutex_lock(&set->lock);
    for (int i = 0; i < s->n_events; i++) {
        const Event *e = &s->events[i];
        if (e->seq > set->last_seq && (!first || e->seq < first->seq) && wants_event(set, s, e)) first = e;
    }
    if (first) {
        set->last_seq = first->seq;
        atomic_store(&given_seq, first->seq);
        *to = (nvmlEventData_t){handle_pointer(s->gpus[first->slot]->handle), first->type, first->data, first->gi, first->ci};
    }
    pthread_mutex_unlock(&set->lock);
    return first != NULL;
}

static bool has_lost(nvmlEventSet_t set, const Scenario *s) {
    bool lost = false;
    pthread_mutex_lock(&set->lock);
    for (int slot = 0; slot < MAX_GPUS; slot++)
        for (int i = 0; s->gpus[slot] && s->gpus[slot]->lost && i < set->n; i++)
            lost = lost || set->registered[i].handle == s->gpus[slot]->handle;
    pthread_mutex_unlock(&set->lock);
    return lost;
}

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
    Call call;
    nvmlReturn_t rc = call_begin(&call, FN_nvmlEventSetWait_v2, SYSTEM, NULL, &NO_ARGS);
    if (rc == NVML_SUCCESS && (!valid(set) || !data)) rc = NVML_ERROR_INVALID_ARGUMENT;
    call_unlock(&call);
    uint64_t until = now_us() + 1000ULL * timeout_ms + 1;
    bool is_hurried = false;
    while (rc == NVML_SUCCESS && !next_event(set, call.scenario, data)) {
        uint64_t now = now_us();
        if (has_lost(set, call.scenario)) {
            rc = NVML_ERROR_GPU_IS_LOST;
            break;
        }
        if (now >= until || is_hurried) {
            rc = NVML_ERROR_TIMEOUT;
            break;
        }
        pause_us(until - now < POLL_US ? until - now : POLL_US);
        is_hurried = atomic_load(&hurried);
        Scenario *newer = scenario_acquire();
        if (newer) {
            scenario_release(call.scenario);
            call.scenario = newer;
        }
    }
    return call_end(&call, rc);
}
