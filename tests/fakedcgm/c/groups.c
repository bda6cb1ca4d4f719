/* Groups of entities and groups of fields. */
#include <string.h>
#include "fake.h"

/* ---- groups ---- */

EXPORT dcgmReturn_t dcgmGroupCreate(dcgmHandle_t handle, uint32_t type, const char *name, dcgmGpuGrp_t *to) {
    static const uint32_t holds[][4] = {
        [DCGM_GROUP_DEFAULT] = {DCGM_FE_GPU},
        [DCGM_GROUP_EMPTY] = {0},
        [DCGM_GROUP_DEFAULT_NVSWITCHES] = {DCGM_FE_SWITCH},
        [DCGM_GROUP_DEFAULT_INSTANCES] = {DCGM_FE_GPU_I},
        [DCGM_GROUP_DEFAULT_COMPUTE_INSTANCES] = {DCGM_FE_GPU_CI},
        [DCGM_GROUP_DEFAULT_EVERYTHING] = {DCGM_FE_GPU, DCGM_FE_SWITCH, DCGM_FE_GPU_I, DCGM_FE_GPU_CI},
    };
    BEGIN(dcgmGroupCreate, HANDLE, handle, NULL);
    if (rc == DCGM_ST_OK && (!name || !to || type >= COUNT_OF(holds) || strlen(name) > 255)) rc = DCGM_ST_BADPARAM;
    Engine *e = rc == DCGM_ST_OK ? call_engine(&call) : NULL;
    if (rc == DCGM_ST_OK && !e) rc = DCGM_ST_CONNECTION_NOT_VALID;
    if (e) {
        rc = DCGM_ST_MAX_LIMIT;
        for (int i = 2; i < DCGM_MAX_NUM_GROUPS && rc; i++) { /* two of them are the engine's own */
            Group *g = &e->groups[i];
            if (g->used) continue;
            *g = (Group){.used = true, .owner = handle, .id = next_id++};
            strcpy(g->name, name);
            for (int k = 0; k < 4 && holds[type][k]; k++)
                g->n += entities_of(call.scenario, holds[type][k], true, g->entities + g->n, DCGM_GROUP_MAX_ENTITIES - g->n);
            *to = g->id;
            gauge_add(GAUGE_GROUPS, 1);
            rc = DCGM_ST_OK;
        }
        UNLOCK;
    }
    END;
}

int group_entities(const Scenario *s, Engine *e, uintptr_t id, dcgmGroupEntityPair_t *to) {
    static const uint32_t always[] = {DCGM_FE_GPU_CI, DCGM_FE_GPU_I, DCGM_FE_SWITCH, DCGM_FE_GPU};
    if (id == DCGM_GROUP_ALL_ENTITIES) {
        int n = 0;
        for (size_t i = COUNT_OF(always); i-- > 0;) n += entities_of(s, always[i], true, to + n, DCGM_GROUP_MAX_ENTITIES - n);
        return n;
    }
    if (id >= DCGM_GROUP_ALL_COMPUTE_INSTANCES && id <= DCGM_GROUP_ALL_GPUS)
        return entities_of(s, always[id - DCGM_GROUP_ALL_COMPUTE_INSTANCES], true, to, DCGM_GROUP_MAX_ENTITIES);
    const Group *g = group_find(e, id);
    if (!g) return -1;
    memcpy(to, g->entities, sizeof *to * (size_t)g->n);
    return g->n;
}

static int place_in(const Group *g, dcgmGroupEntityPair_t pair) {
    for (int i = 0; i < g->n; i++)
        if (memcmp(&g->entities[i], &pair, sizeof pair) == 0) return i;
    return -1;
}

static dcgmReturn_t group_add(const Scenario *s, Group *g, dcgmGroupEntityPair_t pair) {
    if (!g) return DCGM_ST_NOT_CONFIGURED;
    if (!entity_find(s, pair) || place_in(g, pair) >= 0) return DCGM_ST_BADPARAM;
    if (g->n == DCGM_GROUP_MAX_ENTITIES) return DCGM_ST_MAX_LIMIT;
    g->entities[g->n++] = pair;
    return DCGM_ST_OK;
}

static dcgmReturn_t group_remove(const Scenario *s, Group *g, dcgmGroupEntityPair_t pair) {
    (void)s;
    int at = g ? place_in(g, pair) : 0;
    if (!g) return DCGM_ST_NOT_CONFIGURED;
    if (at < 0) return DCGM_ST_BADPARAM;
    memmove(&g->entities[at], &g->entities[at + 1], sizeof pair * (size_t)(--g->n - at));
    return DCGM_ST_OK;
}

static dcgmReturn_t group_destroy(const Scenario *s, Group *g, dcgmGroupEntityPair_t pair) {
    (void)s, (void)pair;
    if (!g) return DCGM_ST_NOT_CONFIGURED;
    g->used = false;
    gauge_add(GAUGE_GROUPS, -1);
    return DCGM_ST_OK;
}

#define CHANGE_GROUP(name, does, params, ...)                                      \
    EXPORT dcgmReturn_t name params {                                              \
        dcgmGroupEntityPair_t pair = {__VA_ARGS__};                                \
        BEGIN(name, HANDLE, handle, &pair);                                        \
        Engine *e = rc == DCGM_ST_OK ? call_engine(&call) : NULL;                  \
        if (rc == DCGM_ST_OK && !e) rc = DCGM_ST_CONNECTION_NOT_VALID;             \
        if (e) {                                                                   \
            rc = does(call.scenario, group_find(e, group), pair);                  \
            UNLOCK;                                                                \
        }                                                                          \
        END;                                                                       \
    }

CHANGE_GROUP(dcgmGroupAddDevice, group_add, (dcgmHandle_t handle, dcgmGpuGrp_t group, uint32_t gpu), DCGM_FE_GPU, gpu)
CHANGE_GROUP(dcgmGroupAddEntity, group_add, (dcgmHandle_t handle, dcgmGpuGrp_t group, uint32_t of, uint32_t id), of, id)
CHANGE_GROUP(dcgmGroupRemoveEntity, group_remove, (dcgmHandle_t handle, dcgmGpuGrp_t group, uint32_t of, uint32_t id), of, id)
CHANGE_GROUP(dcgmGroupDestroy, group_destroy, (dcgmHandle_t handle, dcgmGpuGrp_t group), 0, 0)

EXPORT dcgmReturn_t dcgmGroupGetInfo(dcgmHandle_t handle, dcgmGpuGrp_t group, void *to) {
    BEGIN(dcgmGroupGetInfo, HANDLE, handle, NULL);
    dcgmGroupInfo_v3 *info = to; /* the older one is shorter */
    if (rc == DCGM_ST_OK && !info) rc = DCGM_ST_BADPARAM;
    if (rc == DCGM_ST_OK) {
        bool older = info->version == VERSION(dcgmGroupInfo_v2, 2);
        if (!older && (is_old(call.scenario) || info->version != VERSION(dcgmGroupInfo_v3, 3))) rc = DCGM_ST_VER_MISMATCH;
        uint32_t room = older ? COUNT_OF(((dcgmGroupInfo_v2 *)0)->entityList) : DCGM_GROUP_MAX_ENTITIES;
        Engine *e = rc == DCGM_ST_OK ? call_engine(&call) : NULL;
        if (rc == DCGM_ST_OK && !e) rc = DCGM_ST_CONNECTION_NOT_VALID;
        if (e) {
            static dcgmGroupEntityPair_t found[DCGM_GROUP_MAX_ENTITIES]; /* under the lock */
            const Group *g = group_find(e, group);
            int n = group_entities(call.scenario, e, group, found);
            if (n < 0) rc = DCGM_ST_NOT_CONFIGURED;
            else if ((uint32_t)n > room) rc = DCGM_ST_INSUFFICIENT_SIZE;
            else {
                info->count = (uint32_t)n;
                strcpy(info->groupName, g ? g->name : "DCGM_ALL");
                memcpy(info->entityList, found, sizeof *found * (size_t)n);
            }
            UNLOCK;
        }
    }
    END;
}

/* ---- field groups ---- */

EXPORT dcgmReturn_t dcgmFieldGroupCreate(dcgmHandle_t handle, int n, const uint16_t *fields, const char *name, dcgmFieldGrp_t *to) {
    BEGIN(dcgmFieldGroupCreate, HANDLE, handle, NULL);
    if (rc == DCGM_ST_OK && (!fields || !name || !to || n < 1 || strlen(name) > 255)) rc = DCGM_ST_BADPARAM;
    if (rc == DCGM_ST_OK && n >= DCGM_MAX_FIELD_IDS_PER_FIELD_GROUP) rc = DCGM_ST_MAX_LIMIT; /* 127 and no more */
    for (int i = 0; rc == DCGM_ST_OK && i < n; i++)
        if (!field_by_id(fields[i]) || call.scenario->unknown[fields[i]]) rc = DCGM_ST_BADPARAM;
    Engine *e = rc == DCGM_ST_OK ? call_engine(&call) : NULL;
    if (rc == DCGM_ST_OK && !e) rc = DCGM_ST_CONNECTION_NOT_VALID;
    if (e) {
        FieldGroup *place = NULL;
        for (int i = 0; i < DCGM_MAX_NUM_FIELD_GROUPS; i++) {
            FieldGroup *g = &e->field_groups[i];
            if (!g->used && !place) place = g;
            if (g->used && strcmp(g->name, name) == 0) rc = DCGM_ST_DUPLICATE_KEY;
        }
        if (!place) rc = DCGM_ST_MAX_LIMIT;
        if (rc == DCGM_ST_OK) {
            *place = (FieldGroup){.used = true, .owner = handle, .id = next_id++, .n = n};
            strcpy(place->name, name);
            memcpy(place->fields, fields, sizeof *fields * (size_t)n);
            *to = place->id;
            gauge_add(GAUGE_FIELD_GROUPS, 1);
        }
        UNLOCK;
    }
    END;
}

EXPORT dcgmReturn_t dcgmFieldGroupDestroy(dcgmHandle_t handle, dcgmFieldGrp_t id) {
    BEGIN(dcgmFieldGroupDestroy, HANDLE, handle, NULL);
    Engine *e = rc == DCGM_ST_OK ? call_engine(&call) : NULL;
    if (rc == DCGM_ST_OK && !e) rc = DCGM_ST_CONNECTION_NOT_VALID;
    if (e) {
        FieldGroup *g = field_group_find(e, id);
        if (g) {
            g->used = false;
            gauge_add(GAUGE_FIELD_GROUPS, -1);
        } else rc = DCGM_ST_NO_DATA;
        UNLOCK;
    }
    END;
}

EXPORT dcgmReturn_t dcgmFieldGroupGetInfo(dcgmHandle_t handle, dcgmFieldGroupInfo_v1 *to) {
    BEGIN(dcgmFieldGroupGetInfo, HANDLE, handle, NULL);
    if (rc == DCGM_ST_OK && !to) rc = DCGM_ST_BADPARAM;
    if (rc == DCGM_ST_OK && to->version != VERSION(dcgmFieldGroupInfo_v1, 1)) rc = DCGM_ST_VER_MISMATCH;
    Engine *e = rc == DCGM_ST_OK ? call_engine(&call) : NULL;
    if (rc == DCGM_ST_OK && !e) rc = DCGM_ST_CONNECTION_NOT_VALID;
    if (e) {
        const FieldGroup *g = field_group_find(e, to->fieldGroupId);
        if (g) {
            to->numFieldIds = (uint32_t)g->n;
            strcpy(to->fieldGroupName, g->name);
            memcpy(to->fieldIds, g->fields, sizeof to->fieldIds);
        } else rc = DCGM_ST_NO_DATA;
        UNLOCK;
    }
    END;
}
