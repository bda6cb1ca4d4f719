/* What surrounds every call: counting, the state of the library, delays, hangs, errors, lost devices, the global lock. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fake.h"

static pthread_mutex_t global_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool closing;

static _Noreturn void overlap(const char *who) {
    fprintf(stderr, "fakenvml: abort: %s overlaps nvmlShutdown\n", who);
    abort();
}

static Rules rules_for(const Call *call, Fn fn, const Args *args) {
    Rules found = {.n = 0};
    const Device *devices[] = {call->device, call->found ? NULL : &call->scenario->system};
    for (size_t i = 0; i < COUNT_OF(devices); i++) {
        const Device *d = devices[i];
        if (!d || (i == 1 && d == call->device)) continue;
        rules_add(&found, d->rows, fn, args);
    }
    return found;
}

/* ---- devices ---- */

static void find_device(Call *call, uint32_t id) {
    Scenario *s = call->scenario;
    call->device = id < s->n_handles ? s->by_handle[id] : NULL;
}

static bool was_instance(nvmlDevice_t handle) { /* UUIDs of MIG devices begin with MIG */
    const char *const *uuid = (const char *const *)handle;
    return strncmp(*uuid, "MIG", 3) == 0;
}

static nvmlReturn_t state_of(const Call *call, nvmlDevice_t handle) {
    const Device *d = call->device;
    if (d && d->lost) return NVML_ERROR_GPU_IS_LOST;
    if (d && !d->gone) return NVML_SUCCESS;
    return (nvmlReturn_t)(was_instance(handle) ? call->scenario->removed_code : call->scenario->gone_code);
}

static bool renew(Call *call, bool has_device, uint32_t id) {
    Scenario *newer = scenario_acquire();
    if (!newer) return false;
    if (call->device == &call->scenario->system) call->device = &newer->system;
    scenario_release(call->scenario);
    call->scenario = newer;
    if (has_device) find_device(call, id);
    return true;
}

/* Delays and hangs; the scenario may be a newer one afterwards. */
static void suffer(Call *call, Fn fn, bool has_device, uint32_t id, const Args *args) {
    Rules rules = rules_for(call, fn, args);
    Hang hang = rules_suffered(&rules);
    while (rules_hold(&rules, &hang))
        if (renew(call, has_device, id)) rules = rules_for(call, fn, args);
}

void call_unlock(Call *call) {
    if (call->locked) pthread_mutex_unlock(&global_lock);
    call->locked = false;
}

static void enter(Call *call, Fn fn) {
    gauge_add(GAUGE_INFLIGHT, 1);
    call->inside = true;
    if (atomic_load(&closing)) overlap(fn_names[fn]);
}

static void lock_if_wanted(Call *call) {
    if (!call->scenario->global_lock) return;
    pthread_mutex_lock(&global_lock);
    call->locked = true;
}

nvmlReturn_t call_end(Call *call, nvmlReturn_t rc) {
    call_unlock(call);
    scenario_release(call->scenario);
    call->scenario = NULL;
    if (call->inside) gauge_add(GAUGE_INFLIGHT, -1);
    call->inside = false;
    return rc;
}

nvmlReturn_t call_begin(Call *call, Fn fn, Wants wants, nvmlDevice_t handle, const Args *args) {
    uint32_t id = 0;
    *call = (Call){0};
    enter(call, fn);
    if (gauge(GAUGE_INITS) <= 0) {
        count_call(fn, -1);
        return NVML_ERROR_UNINITIALIZED;
    }
    call->scenario = scenario_acquire();
    bool has_device = wants != SYSTEM && handle_id(handle, &id);
    if (has_device) find_device(call, id);
    count_call(fn, call->device ? call->device->slot : -1);
    if (!call->scenario) return NVML_ERROR_UNKNOWN;
    if (wants == SYSTEM) call->device = &call->scenario->system;
    lock_if_wanted(call);
    suffer(call, fn, has_device, id, args);
    if (call->scenario->missing[fn]) return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (wants != SYSTEM && !has_device) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t rc = wants == SYSTEM ? NVML_SUCCESS : state_of(call, handle);
    if (rc == NVML_SUCCESS) {
        Rules rules = rules_for(call, fn, args);
        rc = (nvmlReturn_t)rules_error(&rules);
    }
    if (rc == NVML_SUCCESS && ((wants == GPU && call->device->parent) || (wants == INSTANCE && !call->device->parent)))
        rc = NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS) call->entry = entry_find(call->device, fn, args);
    return rc;
}

nvmlReturn_t call_device(Call *call, Fn fn, Device *device, const Args *args) {
    uint32_t id = device->handle;
    call->device = device;
    call->found = true;
    suffer(call, fn, true, id, args);
    nvmlReturn_t rc = state_of(call, handle_pointer(id));
    if (rc != NVML_SUCCESS) return rc;
    Rules rules = rules_for(call, fn, args);
    return (nvmlReturn_t)rules_error(&rules);
}

/* ---- answers ---- */

static nvmlReturn_t put_value(const Value *v, const Out *out) {
    if (!out->text) {
        if (v->kind == TEXT) return NVML_ERROR_UNKNOWN;
        if (v->kind == REAL && out->size == sizeof(double)) memcpy(out->to, &v->real, sizeof(double));
        else memcpy(out->to, &v->number, out->size);
        return NVML_SUCCESS;
    }
    if (v->kind != TEXT) return NVML_ERROR_UNKNOWN;
    size_t length = strlen(v->text) + 1;
    if (length > out->size) return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out->to, v->text, length);
    return NVML_SUCCESS;
}

nvmlReturn_t put_values(const Entry *entry, const Out *outs, int n_outs) {
    if (!entry || !entry->has_values) return NVML_ERROR_NOT_SUPPORTED;
    for (int i = 0; i < n_outs; i++) {
        if ((uintptr_t)outs[i].to < 4096) return NVML_ERROR_INVALID_ARGUMENT; /* NULL, or a member of NULL */
        if (i >= entry->n_values) return NVML_ERROR_UNKNOWN;
        nvmlReturn_t rc = put_value(&entry->values[i], &outs[i]);
        if (rc != NVML_SUCCESS) return rc;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t answer(Fn fn, Wants wants, nvmlDevice_t handle, Args args, const Out *outs, int n_outs) {
    Call call;
    nvmlReturn_t rc = call_begin(&call, fn, wants, handle, &args);
    if (rc == NVML_SUCCESS) rc = put_values(call.entry, outs, n_outs);
    return call_end(&call, rc);
}

/* ---- the life of the library ---- */

static nvmlReturn_t start(Fn fn) {
    Call call = {0};
    enter(&call, fn);
    count_call(fn, -1);
    call.scenario = scenario_acquire();
    if (!call.scenario) return call_end(&call, NVML_ERROR_DRIVER_NOT_LOADED);
    call.device = &call.scenario->system;
    lock_if_wanted(&call);
    suffer(&call, FN_nvmlInit_v2, false, 0, &NO_ARGS);
    Rules rules = rules_for(&call, FN_nvmlInit_v2, &NO_ARGS);
    nvmlReturn_t rc = call.scenario->missing[fn] ? NVML_ERROR_FUNCTION_NOT_FOUND : (nvmlReturn_t)rules_error(&rules);
    if (rc == NVML_SUCCESS && gauge_add(GAUGE_INITS, 1) == 1) events_restart();
    return call_end(&call, rc);
}

EXPORT nvmlReturn_t nvmlInit_v2(void) { return start(FN_nvmlInit_v2); }

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    return start(FN_nvmlInitWithFlags);
}

EXPORT nvmlReturn_t nvmlShutdown(void) {
    Call call = {0};
    count_call(FN_nvmlShutdown, -1);
    pthread_mutex_lock(&init_lock);
    int64_t inits = gauge(GAUGE_INITS);
    if (inits <= 0) {
        pthread_mutex_unlock(&init_lock);
        return NVML_ERROR_UNINITIALIZED;
    }
    if (inits == 1) { /* the last one: it takes the library away from under any other call */
        atomic_store(&closing, true);
        if (gauge(GAUGE_INFLIGHT) > 0) overlap("a call in flight");
    }
    nvmlReturn_t rc = NVML_SUCCESS;
    call.scenario = scenario_acquire();
    if (call.scenario) {
        call.device = &call.scenario->system;
        suffer(&call, FN_nvmlShutdown, false, 0, &NO_ARGS);
        Rules rules = rules_for(&call, FN_nvmlShutdown, &NO_ARGS);
        rc = (nvmlReturn_t)rules_error(&rules);
    }
    if (rc == NVML_SUCCESS) gauge_add(GAUGE_INITS, -1);
    atomic_store(&closing, false);
    pthread_mutex_unlock(&init_lock);
    return call_end(&call, rc);
}
