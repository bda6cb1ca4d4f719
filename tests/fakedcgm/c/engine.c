/* Connections, and what callers have made in the embedded engine and in the host engine. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "fake.h"

enum { MAX_CONNECTIONS = 256, DEFAULT_TIMEOUT_MS = 5000, POLL_US = 2000 };

typedef struct {
    bool used, alive, persist;
    dcgmHandle_t handle;
} Connection;

pthread_mutex_t engine_lock = PTHREAD_MUTEX_INITIALIZER;
static Engine embedded, host;
static uint64_t host_incarnation;
static bool embedded_runs;
static Connection connections[MAX_CONNECTIONS];
static uintptr_t last_handle;
uintptr_t next_id = 2; /* the groups 0 and 1 are the engine's own */
static char last_connect[512], last_start[512];

/* ---- the end of things ---- */

void watch_free(Watch **at) {
    Watch *w = *at;
    *at = w->next;
    free(w->entities);
    free(w->fields);
    free(w->cells);
    free(w);
    gauge_add(GAUGE_WATCHES, -1);
}

/* Remove what *owner* has made; 0: everything. */
static void wipe(Engine *e, dcgmHandle_t owner) {
    for (int i = 0; i < DCGM_MAX_NUM_GROUPS; i++)
        if (e->groups[i].used && (!owner || e->groups[i].owner == owner)) {
            e->groups[i].used = false;
            gauge_add(GAUGE_GROUPS, -1);
        }
    for (int i = 0; i < DCGM_MAX_NUM_FIELD_GROUPS; i++)
        if (e->field_groups[i].used && (!owner || e->field_groups[i].owner == owner)) {
            e->field_groups[i].used = false;
            gauge_add(GAUGE_FIELD_GROUPS, -1);
        }
    for (Watch **w = &e->watches; *w;)
        if (!owner || (*w)->owner == owner) watch_free(w);
        else w = &(*w)->next;
}

/* Another test: nothing is left of what was made before, not even what was to outlive its connection. */
void path_changed(void) {
    pthread_mutex_lock(&engine_lock);
    wipe(&host, 0);
    wipe(&embedded, 0);
    last_connect[0] = last_start[0] = 0;
    UNLOCK;
}

/* See whether the host engine is still the one that connections were made to. */
static void look_at_host(const Scenario *s) {
    if (!s->gone && s->engine == host_incarnation) return;
    host_incarnation = s->gone ? UINT64_MAX : s->engine;
    for (int i = 0; i < MAX_CONNECTIONS; i++) connections[i].alive = false;
    wipe(&host, 0);
}

/* ---- finding ---- */

static Connection *connection_find(dcgmHandle_t handle) {
    for (int i = 0; i < MAX_CONNECTIONS; i++)
        if (connections[i].used && connections[i].handle == handle) return &connections[i];
    return NULL;
}

Engine *engine_of(const Scenario *s, dcgmHandle_t handle) {
    look_at_host(s);
    if (handle == DCGM_EMBEDDED_HANDLE) return embedded_runs ? &embedded : NULL;
    const Connection *c = connection_find(handle);
    return c && c->alive ? &host : NULL;
}

Group *group_find(Engine *e, uintptr_t id) {
    for (int i = 0; i < DCGM_MAX_NUM_GROUPS; i++)
        if (e->groups[i].used && e->groups[i].id == id) return &e->groups[i];
    return NULL;
}

FieldGroup *field_group_find(Engine *e, uintptr_t id) {
    for (int i = 0; i < DCGM_MAX_NUM_FIELD_GROUPS; i++)
        if (e->field_groups[i].used && e->field_groups[i].id == id) return &e->field_groups[i];
    return NULL;
}

/* ---- connecting ---- */

static bool reachable(const Scenario *s, const char *address) {
    for (int i = 0; i < s->n_addresses; i++)
        if (strcmp(s->addresses[i], address) == 0) return true;
    return s->n_addresses == 0;
}

static void refuse_slowly(uint32_t timeout_ms) {
    uint64_t left = 1000ull * (timeout_ms ? timeout_ms : DEFAULT_TIMEOUT_MS);
    unsigned generation = atomic_load(&release_generation);
    for (; left && generation == atomic_load(&release_generation); left -= left < POLL_US ? left : POLL_US)
        pause_us(left < POLL_US ? left : POLL_US);
}

static dcgmReturn_t connection_make(const Scenario *s, bool persist, dcgmHandle_t *to) {
    dcgmReturn_t rc = DCGM_ST_MAX_LIMIT;
    pthread_mutex_lock(&engine_lock);
    look_at_host(s);
    for (int i = 0; i < MAX_CONNECTIONS; i++)
        if (!connections[i].used) {
            connections[i] = (Connection){true, true, persist, ++last_handle};
            *to = connections[i].handle;
            gauge_add(GAUGE_HANDLES, 1);
            rc = DCGM_ST_OK;
            break;
        }
    UNLOCK;
    return rc;
}

static dcgmReturn_t connect_to(const Scenario *s, const char *address, bool persist, uint32_t timeout_ms, int is_socket,
                               dcgmHandle_t *to) {
    if (!address || !to) return DCGM_ST_BADPARAM;
    pthread_mutex_lock(&engine_lock);
    snprintf(last_connect, sizeof last_connect, "%s timeout_ms=%u unix=%d persist=%d", address, timeout_ms, is_socket, persist);
    UNLOCK;
    bool here = reachable(s, address);
    if (!here && s->slow_refusal) refuse_slowly(timeout_ms);
    if (!here || s->gone) return DCGM_ST_CONNECTION_NOT_VALID;
    return connection_make(s, persist, to);
}

EXPORT dcgmReturn_t dcgmConnect_v2(const char *address, void *params, dcgmHandle_t *to) {
    BEGIN(dcgmConnect_v2, INIT, 0, NULL);
    const dcgmConnectV2Params_v2 *p = params;
    bool first = p && p->version == VERSION(dcgmConnectV2Params_v1, 1);
    if (rc == DCGM_ST_OK && !p) rc = DCGM_ST_BADPARAM;
    if (rc == DCGM_ST_OK && !first && p->version != VERSION(dcgmConnectV2Params_v2, 2)) rc = DCGM_ST_VER_MISMATCH;
    if (rc == DCGM_ST_OK)
        rc = connect_to(call.scenario, address, p->persistAfterDisconnect, first ? 0 : p->timeoutMs,
                        first ? 0 : p->addressIsUnixSocket != 0, to);
    END;
}

EXPORT dcgmReturn_t dcgmConnect_v3(const char *address, dcgmConnectV3Params_v1 *p, dcgmHandle_t *to) {
    BEGIN(dcgmConnect_v3, INIT, 0, NULL);
    if (rc == DCGM_ST_OK && !p) rc = DCGM_ST_BADPARAM;
    if (rc == DCGM_ST_OK && p->version != VERSION(dcgmConnectV3Params_v1, 1)) rc = DCGM_ST_VER_MISMATCH;
    if (rc == DCGM_ST_OK)
        rc = connect_to(call.scenario, address, p->persistAfterDisconnect, p->timeoutMs, address && strncmp(address, "unix:", 5) == 0, to);
    END;
}

EXPORT dcgmReturn_t dcgmDisconnect(dcgmHandle_t handle) {
    BEGIN(dcgmDisconnect, INIT, handle, NULL);
    if (rc == DCGM_ST_OK) {
        pthread_mutex_lock(&engine_lock);
        look_at_host(call.scenario);
        Connection *c = connection_find(handle);
        if (!c || !c->alive) rc = DCGM_ST_CONNECTION_NOT_VALID;
        if (c && c->alive && !c->persist) wipe(&host, handle);
        if (c) {
            c->used = false;
            gauge_add(GAUGE_HANDLES, -1);
        }
        UNLOCK;
    }
    END;
}

/* ---- the embedded engine; it goes to DCGM_HOME_DIR, as DCGM's does ---- */

EXPORT dcgmReturn_t dcgmStartEmbedded_v2(void *params) {
    BEGIN(dcgmStartEmbedded_v2, INIT, 0, NULL);
    dcgmStartEmbeddedV2Params_v1 *p = params; /* the newer ones differ behind denyListCount only */
    if (rc == DCGM_ST_OK && !p) rc = DCGM_ST_BADPARAM;
    if (rc == DCGM_ST_OK) {
        bool known = p->version == VERSION(dcgmStartEmbeddedV2Params_v1, 1) || p->version == VERSION(dcgmStartEmbeddedV2Params_v2, 2);
        if (!is_old(call.scenario)) known |= p->version == VERSION(dcgmStartEmbeddedV2Params_v3, 3);
        if (!known) rc = DCGM_ST_VER_MISMATCH;
    }
    if (rc == DCGM_ST_OK) {
        pthread_mutex_lock(&engine_lock);
        snprintf(last_start, sizeof last_start, "mode=%u log=%s severity=%u denied=%u", p->opMode, p->logFile ? p->logFile : "-",
                 p->severity, p->denyListCount);
        p->dcgmHandle = embedded_runs ? 0 : DCGM_EMBEDDED_HANDLE;
        if (!embedded_runs) gauge_add(GAUGE_HANDLES, 1);
        embedded_runs = true;
        UNLOCK;
        const char *home = getenv("DCGM_HOME_DIR");
        if (home && chdir(home) != 0) rc = DCGM_ST_INIT_ERROR;
    }
    END;
}

static void stop_embedded(void) {
    if (!embedded_runs) return;
    embedded_runs = false;
    wipe(&embedded, 0);
    gauge_add(GAUGE_HANDLES, -1);
}

EXPORT dcgmReturn_t dcgmStopEmbedded(dcgmHandle_t handle) {
    BEGIN(dcgmStopEmbedded, INIT, handle, NULL);
    if (rc == DCGM_ST_OK && handle != DCGM_EMBEDDED_HANDLE) rc = DCGM_ST_BADPARAM;
    if (rc == DCGM_ST_OK) {
        if (gauge(GAUGE_INFLIGHT) > 1) gauge_add(GAUGE_OVERLAPS, 1);
        pthread_mutex_lock(&engine_lock);
        stop_embedded();
        UNLOCK;
    }
    END;
}

/* ---- the life of the library ---- */

EXPORT dcgmReturn_t dcgmInit(void) {
    BEGIN(dcgmInit, NOTHING, 0, NULL);
    if (rc == DCGM_ST_OK) gauge_add(GAUGE_INITS, 1);
    END;
}

EXPORT dcgmReturn_t dcgmShutdown(void) {
    BEGIN(dcgmShutdown, INIT, 0, NULL);
    if (rc == DCGM_ST_OK) {
        if (gauge(GAUGE_INFLIGHT) > 1) gauge_add(GAUGE_OVERLAPS, 1); /* it takes the library away from under another call */
        pthread_mutex_lock(&engine_lock);
        if (gauge_add(GAUGE_INITS, -1) == 0) {
            for (int i = 0; i < MAX_CONNECTIONS; i++)
                if (connections[i].used) {
                    if (connections[i].alive && !connections[i].persist) wipe(&host, connections[i].handle);
                    connections[i].used = false;
                    gauge_add(GAUGE_HANDLES, -1);
                }
            stop_embedded();
        }
        UNLOCK;
    }
    END;
}

static dcgmReturn_t version(const Scenario *s, dcgmVersionInfo_v2 *to) {
    if (!to) return DCGM_ST_BADPARAM;
    if (to->version != VERSION(dcgmVersionInfo_v2, 2)) return DCGM_ST_VER_MISMATCH;
    snprintf(to->rawBuildInfoString, sizeof to->rawBuildInfoString, "version:%s;arch:x86_64;buildtype:Release;buildid:0", s->release);
    return DCGM_ST_OK;
}

EXPORT dcgmReturn_t dcgmVersionInfo(dcgmVersionInfo_v2 *to) {
    BEGIN(dcgmVersionInfo, NOTHING, 0, NULL);
    if (rc == DCGM_ST_OK) rc = version(call.scenario, to);
    END;
}

EXPORT dcgmReturn_t dcgmHostengineVersionInfo(dcgmHandle_t handle, dcgmVersionInfo_v2 *to) {
    BEGIN(dcgmHostengineVersionInfo, HANDLE, handle, NULL);
    if (rc == DCGM_ST_OK) rc = version(call.scenario, to);
    END;
}

/* ---- what tests may look at ---- */

static int say(char *to, int room, const char *what) {
    pthread_mutex_lock(&engine_lock);
    int n = snprintf(to, (size_t)room, "%s", what);
    UNLOCK;
    return n;
}

EXPORT int fakedcgm_last_connect(char *to, int room) { return say(to, room, last_connect); }
EXPORT int fakedcgm_last_start(char *to, int room) { return say(to, room, last_start); }

/* One line for each watch: group, field group, interval, age and number to keep; entities; fields. The length that it has. */
EXPORT int fakedcgm_watched(char *to, int room) {
    const Engine *engines[] = {&embedded, &host};
    int n = 0;
#define SAY(...) n += snprintf(n < room ? to + n : NULL, n < room ? (size_t)(room - n) : 0, __VA_ARGS__)
    pthread_mutex_lock(&engine_lock);
    for (size_t i = 0; i < COUNT_OF(engines); i++)
        for (const Watch *w = engines[i]->watches; w; w = w->next) {
            SAY("%lu %lu %lld %.17g %d |", (unsigned long)w->group, (unsigned long)w->field_group, w->interval_us, w->keep_age, w->keep_samples);
            for (int k = 0; k < w->n_entities; k++) SAY(" %u/%u", w->entities[k].entityGroupId, w->entities[k].entityId);
            SAY(" |");
            for (int k = 0; k < w->n_fields; k++) SAY(" %u", w->fields[k]);
            SAY("\n");
        }
    UNLOCK;
    return n;
}
