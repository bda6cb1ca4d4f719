/* Watches: which fields of which entities have values, and how many samples were taken of each. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include "fake.h"

static bool profiles(const Scenario *s, dcgmGroupEntityPair_t pair, uint16_t field) {
    const Entity *e = entity_find(s, pair), *gpu = gpu_of(e);
    for (int i = 0; gpu && i < gpu->n_profiling; i++)
        for (uint32_t k = 0; k < gpu->profiling[i].numFieldIds; k++)
            if (gpu->profiling[i].fieldIds[k] == field) return true;
    return false;
}

/* One profiling field that one of the entities lacks fails the whole watch. */
static dcgmReturn_t may_watch(const Scenario *s, const FieldGroup *fields, const dcgmGroupEntityPair_t *entities, int n) {
    if (s->no_nvml) return DCGM_ST_NVML_NOT_LOADED;
    for (int f = 0; f < fields->n; f++)
        if (field_by_id(fields->fields[f])->profiling) {
            if (s->no_profiling) return DCGM_ST_MODULE_NOT_LOADED;
            for (int i = 0; i < n; i++)
                if (!profiles(s, entities[i], fields->fields[f])) return DCGM_ST_MODULE_NOT_LOADED;
        }
    return DCGM_ST_OK;
}

static Watch **watch_of(Engine *e, uintptr_t group, uintptr_t field_group) {
    Watch **w = &e->watches;
    while (*w && ((*w)->group != group || (*w)->field_group != field_group)) w = &(*w)->next;
    return w;
}

static void *copy(const void *from, size_t size) {
    void *to = malloc(size ? size : 1);
    if (!to) abort();
    return memcpy(to, from, size);
}

EXPORT dcgmReturn_t dcgmWatchFields(dcgmHandle_t handle, dcgmGpuGrp_t group, dcgmFieldGrp_t field_group, long long interval_us,
                                    double keep_age, int keep_samples) {
    BEGIN(dcgmWatchFields, HANDLE, handle, NULL);
    if (rc == DCGM_ST_OK && interval_us <= 0) rc = DCGM_ST_BADPARAM;
    Engine *e = rc == DCGM_ST_OK ? call_engine(&call) : NULL;
    if (rc == DCGM_ST_OK && !e) rc = DCGM_ST_CONNECTION_NOT_VALID;
    if (e) {
        static dcgmGroupEntityPair_t entities[DCGM_GROUP_MAX_ENTITIES]; /* under the lock */
        const FieldGroup *fields = field_group_find(e, field_group);
        int n = group_entities(call.scenario, e, group, entities);
        rc = n < 0 ? DCGM_ST_NOT_CONFIGURED : !fields ? DCGM_ST_NO_DATA : may_watch(call.scenario, fields, entities, n);
        if (rc == DCGM_ST_OK) {
            Watch **at = watch_of(e, group, field_group), *w = calloc(1, sizeof *w);
            if (!w) abort();
            if (*at) watch_free(at);
            *w = (Watch){.next = *at, .owner = handle, .group = group, .field_group = field_group, .n_entities = n, .n_fields = fields->n,
                         .interval_us = interval_us, .keep_age = keep_age, .keep_samples = keep_samples};
            w->entities = copy(entities, sizeof *entities * (size_t)n);
            w->fields = copy(fields->fields, sizeof *fields->fields * (size_t)fields->n);
            w->cells = calloc((size_t)n * (size_t)fields->n + 1, sizeof *w->cells);
            if (!w->cells) abort();
            *at = w;
            gauge_add(GAUGE_WATCHES, 1);
        }
        UNLOCK;
    }
    END;
}

EXPORT dcgmReturn_t dcgmUnwatchFields(dcgmHandle_t handle, dcgmGpuGrp_t group, dcgmFieldGrp_t field_group) {
    BEGIN(dcgmUnwatchFields, HANDLE, handle, NULL);
    Engine *e = rc == DCGM_ST_OK ? call_engine(&call) : NULL;
    if (rc == DCGM_ST_OK && !e) rc = DCGM_ST_CONNECTION_NOT_VALID;
    if (e) {
        Watch **w = watch_of(e, group, field_group);
        if (*w) watch_free(w);
        else rc = DCGM_ST_NOT_WATCHED;
        UNLOCK;
    }
    END;
}

EXPORT dcgmReturn_t dcgmUpdateAllFields(dcgmHandle_t handle, int wait) {
    (void)wait; /* it is done before it returns either way */
    BEGIN(dcgmUpdateAllFields, HANDLE, handle, NULL);
    Engine *e = rc == DCGM_ST_OK ? call_engine(&call) : NULL;
    if (rc == DCGM_ST_OK && !e) rc = DCGM_ST_CONNECTION_NOT_VALID;
    if (e) {
        for (Watch *w = e->watches; w; w = w->next)
            for (int i = 0; i < w->n_entities * w->n_fields; i++) {
                w->cells[i].samples++;
                w->cells[i].fresh = true;
            }
        UNLOCK;
    }
    END;
}

Cell *watch_cell(Engine *e, const Field *f, dcgmGroupEntityPair_t pair, unsigned field) {
    for (const Watch *w = e->watches; w; w = w->next)
        for (int k = 0; k < w->n_fields; k++) {
            if (w->fields[k] != field) continue;
            for (int i = 0; i < w->n_entities; i++) /* a field of the system counts with the first */
                if (f->global || memcmp(&w->entities[i], &pair, sizeof pair) == 0) return &w->cells[i * w->n_fields + k];
        }
    return NULL;
}
