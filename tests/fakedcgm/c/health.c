/* Health: the incidents of the entities of a group, in the systems that are watched. */
#include <string.h>
#include "fake.h"

static dcgmReturn_t set(Call *call, uintptr_t group, uint32_t systems) {
    Engine *e = call_engine(call);
    if (!e) return DCGM_ST_CONNECTION_NOT_VALID;
    Group *g = group_find(e, group);
    if (g) g->systems = systems;
    UNLOCK;
    return g ? DCGM_ST_OK : DCGM_ST_NOT_CONFIGURED;
}

EXPORT dcgmReturn_t dcgmHealthSet(dcgmHandle_t handle, dcgmGpuGrp_t group, uint32_t systems) {
    BEGIN(dcgmHealthSet, HANDLE, handle, NULL);
    if (rc == DCGM_ST_OK) rc = set(&call, group, systems);
    END;
}

EXPORT dcgmReturn_t dcgmHealthSet_v2(dcgmHandle_t handle, dcgmHealthSetParams_v2 *p) {
    BEGIN(dcgmHealthSet_v2, HANDLE, handle, NULL);
    if (rc == DCGM_ST_OK && !p) rc = DCGM_ST_BADPARAM;
    if (rc == DCGM_ST_OK && p->version != VERSION(dcgmHealthSetParams_v2, 2)) rc = DCGM_ST_VER_MISMATCH;
    if (rc == DCGM_ST_OK) rc = set(&call, p->groupId, p->systems);
    END;
}

EXPORT dcgmReturn_t dcgmHealthGet(dcgmHandle_t handle, dcgmGpuGrp_t group, uint32_t *systems) {
    BEGIN(dcgmHealthGet, HANDLE, handle, NULL);
    if (rc == DCGM_ST_OK && !systems) rc = DCGM_ST_BADPARAM;
    Engine *e = rc == DCGM_ST_OK ? call_engine(&call) : NULL;
    if (rc == DCGM_ST_OK && !e) rc = DCGM_ST_CONNECTION_NOT_VALID;
    if (e) {
        const Group *g = group_find(e, group);
        if (g) *systems = g->systems;
        else rc = DCGM_ST_NOT_CONFIGURED;
        UNLOCK;
    }
    END;
}

static void add_incidents(const Scenario *s, const Group *g, dcgmHealthResponse_v5 *to, uint32_t room) {
    to->overallHealth = to->incidentCount = 0;
    for (int i = 0; i < g->n; i++) {
        const Entity *e = entity_find(s, g->entities[i]);
        for (const Incident *in = e ? e->incidents : NULL; in && to->incidentCount < room; in = in->next) {
            if (!(in->system & g->systems)) continue;
            dcgmIncidentInfo_t *one = &to->incidents[to->incidentCount++];
            *one = (dcgmIncidentInfo_t){.system = in->system, .health = in->health, .entityInfo = e->pair};
            one->error.code = in->code;
            strncpy(one->error.msg, in->message, sizeof one->error.msg - 1);
            if (in->health > to->overallHealth) to->overallHealth = in->health;
        }
    }
}

EXPORT dcgmReturn_t dcgmHealthCheck(dcgmHandle_t handle, dcgmGpuGrp_t group, void *results) {
    BEGIN(dcgmHealthCheck, HANDLE, handle, NULL);
    dcgmHealthResponse_v5 *to = results; /* the older one is shorter */
    if (rc == DCGM_ST_OK && !to) rc = DCGM_ST_BADPARAM;
    bool old = rc == DCGM_ST_OK && is_old(call.scenario);
    uint32_t wanted = old ? VERSION(dcgmHealthResponse_v4, 4) : VERSION(dcgmHealthResponse_v5, 5);
    if (rc == DCGM_ST_OK && to->version != wanted) rc = DCGM_ST_VER_MISMATCH;
    Engine *e = rc == DCGM_ST_OK ? call_engine(&call) : NULL;
    if (rc == DCGM_ST_OK && !e) rc = DCGM_ST_CONNECTION_NOT_VALID;
    if (e) {
        const Group *g = group_find(e, group);
        if (g) add_incidents(call.scenario, g, to, old ? 64 : 1024);
        else rc = DCGM_ST_NOT_CONFIGURED;
        UNLOCK;
    }
    END;
}
