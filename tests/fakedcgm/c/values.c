/* Values of fields. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include "fake.h"

/* ---- one value ---- */

static int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int64_t measured_at(const Scenario *s, const Entity *e, const Answer *a, uint32_t samples) {
    const Time *of[] = {a ? &a->time : &e->time, &e->time, &s->system.time};
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        if (of[i]->kind == AGE) return now_us() - of[i]->us;
        if (of[i]->kind == AT) return of[i]->us + of[i]->step_us * (samples ? samples - 1 : 0);
    }
    return now_us();
}

static void put_blank(dcgmFieldValue_v1 *to, const Field *f, int kind, int status) {
    static const char *const texts[] = {"<<<NULL>>>", "<<<NOT_FOUND>>>", "<<<NOT_SUPPORTED>>>", "<<<NOT_PERM>>>"};
    to->status = status;
    if (f->type == 'd') to->value.dbl = DCGM_FP64_BLANK + kind;
    else if (f->type == 's') strcpy(to->value.str, texts[kind & 3]);
    else if (f->type == 'i') to->value.i64 = DCGM_INT64_BLANK + kind;
    else to->value.blob[0] = 0;
}

static void put_value(dcgmFieldValue_v1 *to, const Value *v, const Value *step, uint32_t samples) {
    uint32_t steps = samples ? samples - 1 : 0;
    if (v->kind == TEXT) memcpy(to->value.blob, v->text, v->length + (v->length < sizeof to->value.blob));
    else if (v->kind == REAL) to->value.dbl = v->real + step->real * steps;
    else to->value.i64 = (int64_t)(v->number + step->number * steps);
}

/* What `fill` needs to know; the lock is held. */
typedef struct {
    const Scenario *scenario;
    Engine *engine;
    int error; /* of the entity */
    bool live; /* asked of the driver, watched or not */
} Question;

static uint32_t sample_taken(const Question *q, Cell *c) {
    if (c->fresh) c->fresh = false;
    else if (!q->scenario->needs_update) c->samples++;
    return c->samples;
}

static const Entity *owner_of(const Scenario *s, const Field *f, dcgmGroupEntityPair_t pair) {
    const Entity *e = f->global ? &s->system : entity_find(s, pair);
    return e && (e->status == DcgmEntityStatusLost || e->status == DcgmEntityStatusDetached) ? NULL : e;
}

static void fill(const Question *q, dcgmGroupEntityPair_t pair, unsigned id, dcgmFieldValue_v1 *to) {
    const Field *f = field_by_id(id);
    const Entity *e = owner_of(q->scenario, f, pair);
    Cell *cell = q->live ? NULL : watch_cell(q->engine, f, pair, id);
    memset(to, 0, offsetof(dcgmFieldValue_v1, value) + 8);
    to->version = VERSION(dcgmFieldValue_v1, 1);
    to->fieldId = (uint16_t)id;
    to->fieldType = (uint16_t)f->type;
    if (q->error || !e || (!cell && !q->live)) return put_blank(to, f, 0, q->error ? q->error : DCGM_ST_NOT_WATCHED);
    uint32_t samples = cell ? sample_taken(q, cell) : 1;
    if (!samples) return put_blank(to, f, 0, DCGM_ST_NO_DATA);
    const Answer *a = e->answers[id];
    to->ts = measured_at(q->scenario, e, a, samples);
    if (f->profiling && samples == 1) return put_blank(to, f, 0, DCGM_ST_OK); /* it is a difference of two */
    if (!a) return put_blank(to, f, 2, DCGM_ST_OK);
    if (a->blank) return put_blank(to, f, a->blank - 1, a->status);
    const Past *last = a->past;
    while (last && last->next) last = last->next;
    if (last) to->ts = last->ts;
    put_value(to, last ? &last->value : &a->value, &a->step, last ? 1 : samples);
}

static void as_v2(const dcgmFieldValue_v1 *from, dcgmGroupEntityPair_t pair, dcgmFieldValue_v2 *to) {
    to->version = VERSION(dcgmFieldValue_v2, 2);
    to->entityGroupId = pair.entityGroupId;
    to->entityId = pair.entityId;
    to->fieldId = from->fieldId;
    to->fieldType = from->fieldType;
    to->status = from->status;
    to->unused = 0;
    to->ts = from->ts;
    to->value = from->value;
}

/* ---- values that the caller has room for ---- */

static dcgmReturn_t check_fields(const uint16_t *fields, uint32_t n, uint32_t flags) {
    if (n > DCGM_MAX_FIELD_IDS_PER_FIELD_GROUP) return DCGM_ST_MAX_LIMIT;
    for (uint32_t i = 0; i < n; i++) {
        const Field *f = field_by_id(fields[i]);
        if (!f) return DCGM_ST_GENERIC_ERROR;
        if (f->profiling && flags & DCGM_FV_FLAG_LIVE_DATA) { /* as the engine does, from 4.0 to 4.6 */
            signal(SIGSEGV, SIG_DFL);
            raise(SIGSEGV);
        }
    }
    return DCGM_ST_OK;
}

EXPORT dcgmReturn_t dcgmEntitiesGetLatestValues(dcgmHandle_t handle, dcgmGroupEntityPair_t *entities, uint32_t n_entities,
                                                uint16_t *fields, uint32_t n_fields, uint32_t flags, dcgmFieldValue_v2 *to) {
    Call call;
    const dcgmGroupEntityPair_t *counted = n_entities == 1 ? entities : NULL;
    dcgmReturn_t rc = call_begin(&call, FN_dcgmEntitiesGetLatestValues, HANDLE, handle, NULL, counted);
    if (rc == DCGM_ST_OK && (!entities || !fields || !to || !n_entities || !n_fields)) rc = DCGM_ST_BADPARAM;
    if (rc == DCGM_ST_OK && n_entities > DCGM_GROUP_MAX_ENTITIES) rc = DCGM_ST_MAX_LIMIT;
    if (rc == DCGM_ST_OK) rc = check_fields(fields, n_fields, flags);
    for (uint32_t i = 0; rc == DCGM_ST_OK && i < n_entities; i++) {
        int error = call_entity(&call, entities[i]);
        Engine *e = call_engine(&call);
        if (!e) {
            rc = DCGM_ST_CONNECTION_NOT_VALID;
            break;
        }
        Question q = {call.scenario, e, error, flags & DCGM_FV_FLAG_LIVE_DATA};
        static dcgmFieldValue_v1 one; /* under the lock */
        for (uint32_t k = 0; k < n_fields; k++) {
            fill(&q, entities[i], fields[k], &one);
            as_v2(&one, entities[i], &to[i * n_fields + k]);
        }
        UNLOCK;
    }
    END;
}

EXPORT dcgmReturn_t dcgmEntityGetLatestValues(dcgmHandle_t handle, uint32_t group, int id, uint16_t *fields, uint32_t n,
                                              dcgmFieldValue_v1 *to) {
    dcgmGroupEntityPair_t pair = {group, (uint32_t)id};
    BEGIN(dcgmEntityGetLatestValues, HANDLE, handle, &pair);
    if (rc == DCGM_ST_OK && (!fields || !to || !n)) rc = DCGM_ST_BADPARAM;
    if (rc == DCGM_ST_OK) rc = check_fields(fields, n, 0);
    Engine *e = rc == DCGM_ST_OK ? call_engine(&call) : NULL;
    if (rc == DCGM_ST_OK && !e) rc = DCGM_ST_CONNECTION_NOT_VALID;
    if (e) {
        Question q = {call.scenario, e, 0, false};
        for (uint32_t k = 0; k < n; k++) fill(&q, pair, fields[k], &to[k]);
        UNLOCK;
    }
    END;
}

/* ---- values that are handed over one by one, on the caller's thread ---- */

typedef struct {
    dcgmGroupEntityPair_t pair;
    dcgmFieldValue_v1 value;
} Given;

typedef struct {
    Given *items;
    size_t n, room;
} Givens;

static dcgmFieldValue_v1 *give(Givens *g, dcgmGroupEntityPair_t pair) {
    if (g->n == g->room) {
        g->room = g->room ? 2 * g->room : 64;
        g->items = realloc(g->items, g->room * sizeof *g->items);
        if (!g->items) abort();
    }
    g->items[g->n].pair = pair;
    return &g->items[g->n++].value;
}

static void give_since(const Question *q, dcgmGroupEntityPair_t pair, unsigned id, int64_t since, Givens *to) {
    const Field *f = field_by_id(id);
    const Entity *e = owner_of(q->scenario, f, pair);
    dcgmFieldValue_v1 now;
    fill(q, pair, id, &now);
    if (now.status == DCGM_ST_NOT_WATCHED || now.status == DCGM_ST_NO_DATA) return;
    if (!e || !e->answers[id] || !e->answers[id]->past || now.status != DCGM_ST_OK) {
        if (now.ts >= since) *give(to, pair) = now;
        return;
    }
    for (const Past *p = e->answers[id]->past; p; p = p->next)
        if (p->ts >= since) {
            dcgmFieldValue_v1 *v = give(to, pair);
            *v = now;
            v->ts = p->ts;
            put_value(v, &p->value, &e->answers[id]->step, 1);
        }
}

static dcgmReturn_t gather(Call *call, uintptr_t group, uintptr_t field_group, const int64_t *since, Givens *to) {
    dcgmGroupEntityPair_t entities[DCGM_GROUP_MAX_ENTITIES];
    Engine *e = call_engine(call);
    if (!e) return DCGM_ST_CONNECTION_NOT_VALID;
    int n = group_entities(call->scenario, e, group, entities);
    UNLOCK;
    if (n < 0) return DCGM_ST_NOT_CONFIGURED;
    for (int i = 0; i < n; i++) {
        int error = call_entity(call, entities[i]);
        e = call_engine(call);
        if (!e) return DCGM_ST_CONNECTION_NOT_VALID;
        const FieldGroup *g = field_group_find(e, field_group);
        Question q = {call->scenario, e, error, false};
        for (int k = 0; g && k < g->n; k++)
            if (since) give_since(&q, entities[i], g->fields[k], *since, to);
            else fill(&q, entities[i], g->fields[k], give(to, entities[i]));
        UNLOCK;
        if (!g) return DCGM_ST_NO_DATA;
    }
    return DCGM_ST_OK;
}

static void hand_over(const Givens *g, dcgmFieldValueEntityEnumeration_f callback, void *user) {
    for (size_t i = 0; i < g->n; i++)
        if (callback(g->items[i].pair.entityGroupId, g->items[i].pair.entityId, &g->items[i].value, 1, user)) break;
}

EXPORT dcgmReturn_t dcgmGetLatestValues_v2(dcgmHandle_t handle, dcgmGpuGrp_t group, dcgmFieldGrp_t field_group,
                                           dcgmFieldValueEntityEnumeration_f callback, void *user) {
    BEGIN(dcgmGetLatestValues_v2, HANDLE, handle, NULL);
    Givens given = {0};
    if (rc == DCGM_ST_OK && !callback) rc = DCGM_ST_BADPARAM;
    if (rc == DCGM_ST_OK) rc = gather(&call, group, field_group, NULL, &given);
    if (rc == DCGM_ST_OK) hand_over(&given, callback, user);
    free(given.items);
    END;
}

EXPORT dcgmReturn_t dcgmGetValuesSince_v2(dcgmHandle_t handle, dcgmGpuGrp_t group, dcgmFieldGrp_t field_group, long long since,
                                          long long *next, dcgmFieldValueEntityEnumeration_f callback, void *user) {
    BEGIN(dcgmGetValuesSince_v2, HANDLE, handle, NULL);
    Givens given = {0};
    int64_t from = since;
    if (rc == DCGM_ST_OK && (!callback || !next)) rc = DCGM_ST_BADPARAM;
    if (rc == DCGM_ST_OK) rc = gather(&call, group, field_group, &from, &given);
    if (rc == DCGM_ST_OK) {
        *next = since;
        for (size_t i = 0; i < given.n; i++)
            if (given.items[i].value.ts >= *next) *next = given.items[i].value.ts + 1;
        hand_over(&given, callback, user);
    }
    free(given.items);
    END;
}
