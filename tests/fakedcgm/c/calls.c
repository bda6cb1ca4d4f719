/* What surrounds every call: counting, the state of the library, delays, hangs, errors, dead engines. */
#include <stdlib.h>
#include <string.h>
#include "fake.h"

static Rules rules_for(const Scenario *s, Fn fn, const dcgmGroupEntityPair_t *about, bool with_system) {
    Rules found = {.n = 0};
    const Entity *e = about ? entity_find(s, *about) : NULL;
    if (e) rules_add(&found, e->rows, fn, &NO_ARGS);
    if (with_system) rules_add(&found, s->system.rows, fn, &NO_ARGS);
    return found;
}

/* Delays and hangs; the scenario may be a newer one afterwards. Gives the error. */
static int suffer(Call *call, const dcgmGroupEntityPair_t *about, bool with_system) {
    Rules rules = rules_for(call->scenario, call->fn, about, with_system);
    Hang hang = rules_suffered(&rules);
    while (rules_hold(&rules, &hang)) {
        Scenario *newer = scenario_acquire();
        if (!newer) continue;
        scenario_release(call->scenario);
        call->scenario = newer;
        rules = rules_for(newer, call->fn, about, with_system);
    }
    return rules_error(&rules);
}

dcgmReturn_t call_begin(Call *call, Fn fn, Wants wants, dcgmHandle_t handle, const dcgmGroupEntityPair_t *about,
                        const dcgmGroupEntityPair_t *counted) {
    *call = (Call){.handle = handle, .fn = fn, .scenario = scenario_acquire()};
    gauge_add(GAUGE_INFLIGHT, 1);
    const Entity *e = counted && call->scenario ? entity_find(call->scenario, *counted) : NULL;
    count_call(fn, e ? e->slot : -1);
    if (wants != NOTHING && gauge(GAUGE_INITS) <= 0) return DCGM_ST_UNINITIALIZED;
    if (!call->scenario) return DCGM_ST_GENERIC_ERROR;
    int error = suffer(call, about, true);
    if (call->scenario->missing[fn]) return DCGM_ST_FUNCTION_NOT_FOUND;
    if (wants == HANDLE) {
        if (!call_engine(call)) return DCGM_ST_CONNECTION_NOT_VALID;
        UNLOCK;
    }
    return error;
}

dcgmReturn_t call_end(Call *call, dcgmReturn_t rc) {
    scenario_release(call->scenario);
    gauge_add(GAUGE_INFLIGHT, -1);
    return rc;
}

int call_entity(Call *call, dcgmGroupEntityPair_t about) { return suffer(call, &about, false); }

Engine *call_engine(Call *call) {
    pthread_mutex_lock(&engine_lock);
    Engine *e = engine_of(call->scenario, call->handle);
    if (!e) UNLOCK;
    return e;
}
