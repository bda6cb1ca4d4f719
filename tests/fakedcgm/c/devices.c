/* Which GPUs, instances and other entities there are, and what they are. */
#include <string.h>
#include "fake.h"

int entities_of(const Scenario *s, uint32_t group, bool supported, dcgmGroupEntityPair_t *to, int room) {
    int n = 0;
    for (const Entity *e = s->entities; e && n < room; e = e->next)
        if (e->pair.entityGroupId == group && !e->gone && (!supported || e->status == DcgmEntityStatusOk)) to[n++] = e->pair;
    return n;
}

static dcgmReturn_t list(const Scenario *s, bool supported, uint32_t *to, int *count) {
    dcgmGroupEntityPair_t found[DCGM_MAX_NUM_DEVICES];
    if (!to || !count) return DCGM_ST_BADPARAM;
    *count = entities_of(s, DCGM_FE_GPU, supported, found, DCGM_MAX_NUM_DEVICES);
    for (int i = 0; i < *count; i++) to[i] = found[i].entityId;
    return DCGM_ST_OK;
}

EXPORT dcgmReturn_t dcgmGetAllDevices(dcgmHandle_t handle, uint32_t *to, int *count) {
    BEGIN(dcgmGetAllDevices, HANDLE, handle, NULL);
    if (rc == DCGM_ST_OK) rc = list(call.scenario, false, to, count);
    END;
}

EXPORT dcgmReturn_t dcgmGetAllSupportedDevices(dcgmHandle_t handle, uint32_t *to, int *count) {
    BEGIN(dcgmGetAllSupportedDevices, HANDLE, handle, NULL);
    if (rc == DCGM_ST_OK) rc = list(call.scenario, true, to, count);
    END;
}

EXPORT dcgmReturn_t dcgmGetEntityGroupEntities(dcgmHandle_t handle, uint32_t group, uint32_t *to, int *count, uint32_t flags) {
    dcgmGroupEntityPair_t found[DCGM_GROUP_MAX_ENTITIES];
    BEGIN(dcgmGetEntityGroupEntities, HANDLE, handle, NULL);
    if (rc == DCGM_ST_OK && (!to || !count || group >= DCGM_FE_COUNT)) rc = DCGM_ST_BADPARAM;
    if (rc == DCGM_ST_OK) {
        int n = entities_of(call.scenario, group, flags & DCGM_GEGE_FLAG_ONLY_SUPPORTED, found, DCGM_GROUP_MAX_ENTITIES);
        if (n > *count) rc = DCGM_ST_INSUFFICIENT_SIZE;
        for (int i = 0; rc == DCGM_ST_OK && i < n; i++) to[i] = found[i].entityId;
        *count = n;
    }
    END;
}

EXPORT dcgmReturn_t dcgmGetDeviceAttributes(dcgmHandle_t handle, uint32_t gpu, dcgmDeviceAttributes_v3 *to) {
    dcgmGroupEntityPair_t pair = {DCGM_FE_GPU, gpu};
    BEGIN(dcgmGetDeviceAttributes, HANDLE, handle, &pair);
    if (rc == DCGM_ST_OK && !to) rc = DCGM_ST_BADPARAM;
    if (rc == DCGM_ST_OK && to->version != VERSION(dcgmDeviceAttributes_v3, 3)) rc = DCGM_ST_VER_MISMATCH;
    if (rc == DCGM_ST_OK) {
        const Entity *e = entity_find(call.scenario, pair);
        if (e) *to = *e->attributes;
        else rc = DCGM_ST_BADPARAM;
    }
    END;
}

EXPORT dcgmReturn_t dcgmGetGpuStatus(dcgmHandle_t handle, uint32_t gpu, uint32_t *to) {
    dcgmGroupEntityPair_t pair = {DCGM_FE_GPU, gpu};
    BEGIN(dcgmGetGpuStatus, HANDLE, handle, &pair);
    if (rc == DCGM_ST_OK && !to) rc = DCGM_ST_BADPARAM;
    if (rc == DCGM_ST_OK) {
        const Entity *e = entity_find(call.scenario, pair);
        *to = e ? e->status : DcgmEntityStatusUnknown;
    }
    END;
}

EXPORT dcgmReturn_t dcgmGetGpuChipArchitecture(dcgmHandle_t handle, uint32_t gpu, uint32_t *to) {
    dcgmGroupEntityPair_t pair = {DCGM_FE_GPU, gpu};
    BEGIN(dcgmGetGpuChipArchitecture, HANDLE, handle, &pair);
    if (rc == DCGM_ST_OK && !to) rc = DCGM_ST_BADPARAM;
    if (rc == DCGM_ST_OK) {
        const Entity *e = entity_find(call.scenario, pair);
        if (e) *to = e->architecture ? e->architecture : UINT32_MAX;
        else rc = DCGM_ST_BADPARAM;
    }
    END;
}

static void add_level(const Scenario *s, const Entity *above, dcgmMigHierarchy_v2 *to) {
    for (const Entity *e = s->entities; e && to->count < DCGM_MAX_HIERARCHY_INFO; e = e->next) {
        if (e->parent != above || e->gone) continue;
        to->entityList[to->count++] = (dcgmMigHierarchyInfo_v2){e->pair, above->pair, e->mig};
        add_level(s, e, to);
    }
}

/* Every instance, each followed by its compute instances. */
EXPORT dcgmReturn_t dcgmGetGpuInstanceHierarchy(dcgmHandle_t handle, dcgmMigHierarchy_v2 *to) {
    BEGIN(dcgmGetGpuInstanceHierarchy, HANDLE, handle, NULL);
    if (rc == DCGM_ST_OK && !to) rc = DCGM_ST_BADPARAM;
    if (rc == DCGM_ST_OK && to->version != VERSION(dcgmMigHierarchy_v2, 2)) rc = DCGM_ST_VER_MISMATCH;
    if (rc == DCGM_ST_OK) {
        to->count = 0;
        for (const Entity *e = call.scenario->entities; e; e = e->next)
            if (e->pair.entityGroupId == DCGM_FE_GPU && !e->gone) add_level(call.scenario, e, to);
    }
    END;
}

EXPORT dcgmReturn_t dcgmProfGetSupportedMetricGroups(dcgmHandle_t handle, dcgmProfGetMetricGroups_v3 *to) {
    dcgmGroupEntityPair_t pair = {DCGM_FE_GPU, to ? to->gpuId : 0};
    BEGIN(dcgmProfGetSupportedMetricGroups, HANDLE, handle, &pair);
    if (rc == DCGM_ST_OK && !to) rc = DCGM_ST_BADPARAM;
    if (rc == DCGM_ST_OK && to->version != VERSION(dcgmProfGetMetricGroups_v3, 3)) rc = DCGM_ST_VER_MISMATCH;
    if (rc == DCGM_ST_OK && call.scenario->no_profiling) rc = DCGM_ST_MODULE_NOT_LOADED;
    if (rc == DCGM_ST_OK) {
        const Entity *e = entity_find(call.scenario, pair);
        if (!e) rc = DCGM_ST_BADPARAM;
        else if (!e->n_profiling) rc = DCGM_ST_PROFILING_NOT_SUPPORTED;
        else {
            to->numMetricGroups = (uint32_t)e->n_profiling;
            memcpy(to->metricGroups, e->profiling, sizeof e->profiling);
        }
    }
    END;
}
