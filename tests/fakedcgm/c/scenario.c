/* The scenario: a text file that says what DCGM answers.
 *
 * One fact a line; blank lines and lines that begin with # are skipped. The file may be replaced (by rename) at any
 * time: every call looks at its inode, size and mtime first and reads it again when they changed. A line that is not
 * understood aborts the process with its number.
 *
 *   release "4.6.0"                        what the version says; 3.x has the structs of DCGM 3
 *   engine 2                               another number is a host engine that was started anew: connections to the one
 *                                          before are dead, its groups and watches are gone
 *   gone                                   no host engine: every call on a connection is CONNECTION_NOT_VALID
 *   address "10.0.0.1:5555"                only these can be connected to; without any such line all can
 *   slow_refusal                           any other address takes the caller's whole timeout (or fakelib_release())
 *   no_nvml                                a watch is NVML_NOT_LOADED
 *   no_profiling                           the profiling module is not there
 *   needs_update                           only dcgmUpdateAllFields takes samples; else every question takes one
 *   check_us 1000                          look at the file no more often than this
 *   unknown 1532                           the engine is older than this field: no field group can have it
 *   missing dcgmGetGpuStatus               the function answers FUNCTION_NOT_FOUND; __init__.py also leaves the symbol out
 *
 *   gpu 0 id 3                             the GPU in slot 0 has this id (default: the slot)
 *   gpu 0 gi 1 id 9                        its GPU instance 1 (default: 8 times the GPU's id, plus 1)
 *   gpu 0 gi 1 ci 0 id 9                   the compute instance 0 of that (default: as the instance, plus 0)
 *   entity 3 0 ...                         any other entity: its group and its id
 *   system ...                             values that belong to no entity, what holds for all entities, and calls without one
 *
 *   gpu 0 gone                             it is no longer there (also an entity of any kind)
 *   gpu 0 status 4                         DcgmEntityStatus; with 4 (lost) and 7 (detached) no value can be had
 *   gpu 0 uuid "GPU-..."                   an attribute, see `attributes` below; what is not said is blank
 *   gpu 0 nvml_index 3                     in the hierarchy (default: the slot)
 *   gpu 0 architecture 9
 *   gpu 0 profiling 0 1 1001 1002          a metric group: major and minor number, the fields
 *   gpu 0 gi 1 nvml 7                      the number that NVML gives the instance; also `profile` and `slices`
 *
 *   gpu 0 field[150] = 41                  a value; a text is quoted, bytes too
 *   gpu 0 field[156] + 250                 it grows by this with every sample
 *   gpu 0 field[150] blank 2               blank, for 0: no reason, 1: not found, 2: not supported, 3: not permitted
 *   gpu 0 field[150] ! -19                 blank, with this status
 *   gpu 0 field[230] past 1700000000000000 79     a value that it had then; the last one is the latest
 *   gpu 0 field[150] time age_us 500       it is always this old
 *   gpu 0 field[150] time at_us 17 2       measured then, and this much later with every sample
 *   gpu 0 time ...                         the same for all its values; `system time` for all values
 *   gpu 0 health 1 10 5 "message"          an incident: system, result, error code
 *   gpu 0 FUNCTION ! -6                    a rule for a function: see fakelib/c/rules.c
 *
 * A watched field of which nothing is said is blank for 2, with status 0. Without `time`, a value was measured just now.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include "fake.h"

/* ---- finding ---- */

const Entity *entity_find(const Scenario *s, dcgmGroupEntityPair_t pair) {
    for (const Entity *e = s->entities; e; e = e->next)
        if (e->pair.entityGroupId == pair.entityGroupId && e->pair.entityId == pair.entityId && !e->gone) return e;
    return NULL;
}

const Entity *gpu_of(const Entity *e) {
    while (e && e->pair.entityGroupId != DCGM_FE_GPU) e = e->parent;
    return e;
}

bool is_old(const Scenario *s) { return s->release[0] == '3'; }

/* ---- attributes of a GPU ---- */

#define AT(member) offsetof(dcgmDeviceAttributes_v3, member)

static const struct {
    const char *name;
    size_t at;
    bool text;
} attributes[] = {
    {"brand", AT(identifiers.brandName), true},
    {"name", AT(identifiers.deviceName), true},
    {"pci", AT(identifiers.pciBusId), true},
    {"serial", AT(identifiers.serial), true},
    {"uuid", AT(identifiers.uuid), true},
    {"vbios", AT(identifiers.vbios), true},
    {"inforom", AT(identifiers.inforomImageVersion), true},
    {"driver", AT(identifiers.driverVersion), true},
    {"pci_device", AT(identifiers.pciDeviceId), false},
    {"pci_subsystem", AT(identifiers.pciSubSystemId), false},
    {"virtualization", AT(identifiers.virtualizationMode), false},
    {"slowdown", AT(thermalSettings.slowdownTemp), false},
    {"shutdown", AT(thermalSettings.shutdownTemp), false},
    {"power_limit", AT(powerLimits.curPowerLimit), false},
    {"power_default", AT(powerLimits.defaultPowerLimit), false},
    {"power_enforced", AT(powerLimits.enforcedPowerLimit), false},
    {"power_min", AT(powerLimits.minPowerLimit), false},
    {"power_max", AT(powerLimits.maxPowerLimit), false},
    {"bar1", AT(memoryUsage.bar1Total), false},
    {"fb_total", AT(memoryUsage.fbTotal), false},
    {"fb_used", AT(memoryUsage.fbUsed), false},
    {"fb_free", AT(memoryUsage.fbFree), false},
    {"persistence", AT(settings.persistenceModeEnabled), false},
    {"mig", AT(settings.migModeEnabled), false},
    {"confidential", AT(settings.confidentialComputeMode), false},
};

static void blank_attributes(dcgmDeviceAttributes_v3 *to) {
    for (size_t i = 0; i < COUNT_OF(attributes); i++) {
        char *at = (char *)to + attributes[i].at;
        if (attributes[i].text) strcpy(at, "<<<NULL>>>");
        else *(uint32_t *)at = DCGM_INT32_BLANK;
    }
    to->version = VERSION(dcgmDeviceAttributes_v3, 3);
}

static bool attribute_line(Reader *r, Entity *e) {
    if (!e->attributes) return false;
    for (size_t i = 0; i < COUNT_OF(attributes); i++)
        if (word(r, attributes[i].name)) {
            char *at = (char *)e->attributes + attributes[i].at;
            if (attributes[i].text) strncpy(at, text(r), 255);
            else *(uint32_t *)at = (uint32_t)number(r);
            return true;
        }
    return false;
}

/* ---- values ---- */

static void time_line(Reader *r, Time *t) {
    t->kind = word(r, "age_us") ? AGE : word(r, "at_us") ? AT : UNSAID;
    if (t->kind == UNSAID) refuse(r, "age_us or at_us is wanted");
    t->us = (int64_t)number(r);
    if (t->kind == AT && !ended(r)) t->step_us = (int64_t)number(r);
}

static Value typed(Reader *r, const Field *f) {
    Value v = value(r);
    if (f->type == 'd' && v.kind == NUMBER) v = (Value){.kind = REAL, .real = (double)(int64_t)v.number};
    if (v.kind != (f->type == 'i' ? NUMBER : f->type == 'd' ? REAL : TEXT)) refuse(r, "the field has another type");
    if (v.kind == TEXT && v.length > (f->type == 's' ? 256 : 4096)) refuse(r, "the value is too long");  /* no end */
    return v;
}

static void field_line(Reader *r, Entity *e) {
    uint32_t id = (uint32_t)number(r);
    const Field *f = field_by_id(id);
    if (!f) refuse(r, "DCGM has no such field");
    if (!mark(r, ']')) refuse(r, "] is wanted");
    if (!e->answers[id]) {
        e->answers[id] = scenario_memory(r->scenario, sizeof(Answer));
        e->answers[id]->blank = 1 + 2;
    }
    Answer *a = e->answers[id];
    if (mark(r, '=')) {
        a->value = typed(r, f);
        a->blank = 0;
    } else if (mark(r, '+')) {
        a->step = typed(r, f);
    } else if (mark(r, '!')) {
        a->status = (int)number(r);
        a->blank = 1;
    } else if (word(r, "blank")) {
        a->blank = 1 + (int)number(r);
    } else if (word(r, "time")) {
        time_line(r, &a->time);
    } else if (word(r, "past")) {
        Past *p = scenario_memory(r->scenario, sizeof *p), **end = &a->past;
        p->ts = (int64_t)number(r);
        p->value = typed(r, f);
        while (*end) end = &(*end)->next;
        *end = p;
        a->blank = 0;
    } else {
        refuse(r, "=, +, !, blank, time or past is wanted");
    }
}

/* ---- entities ---- */

static Entity *entity_make(Scenario *s, uint32_t group, Entity *parent, uint32_t id, int slot) {
    Entity *e = scenario_memory(s, sizeof *e);
    e->pair = (dcgmGroupEntityPair_t){group, id};
    e->parent = parent;
    e->slot = slot;
    e->status = DcgmEntityStatusOk;
    if (group == DCGM_FE_GPU) {
        e->attributes = scenario_memory(s, sizeof *e->attributes);
        blank_attributes(e->attributes);
        e->nvml_index = (uint32_t)slot;
    }
    *s->last = e;
    s->last = &e->next;
    return e;
}

/* The n-th instance of an entity, made when it is not there. */
static Entity *instance(Reader *r, uint32_t group, Entity *parent) {
    uint32_t n = number_below(r, 8, "no such instance"), i = 0;
    for (Entity *e = r->scenario->entities; e; e = e->next)
        if (e->parent == parent && e->pair.entityGroupId == group && i++ == n) return e;
    if (i != n) refuse(r, "instances come in order");
    uint32_t first = group == DCGM_FE_GPU_I ? 8 * parent->pair.entityId : parent->pair.entityId;
    return entity_make(r->scenario, group, parent, first + n, parent->slot);
}

static void entity_line(Reader *r, Entity *e);

static bool instance_line(Reader *r, Entity *e) {
    bool is_gi = e->pair.entityGroupId == DCGM_FE_GPU_I;
    if (!is_gi && e->pair.entityGroupId != DCGM_FE_GPU_CI) return false;
    uint32_t *own = is_gi ? &e->mig.nvmlInstanceId : &e->mig.nvmlComputeInstanceId;
    if (is_gi && word(r, "ci")) entity_line(r, instance(r, DCGM_FE_GPU_CI, e));
    else if (word(r, "nvml")) *own = (uint32_t)number(r);
    else if (word(r, "profile")) e->mig.nvmlMigProfileId = (uint32_t)number(r);
    else if (word(r, "slices")) e->mig.nvmlProfileSlices = (uint32_t)number(r);
    else return false;
    return true;
}

static bool gpu_line(Reader *r, Entity *e) {
    if (e->pair.entityGroupId != DCGM_FE_GPU) return false;
    if (word(r, "gi")) entity_line(r, instance(r, DCGM_FE_GPU_I, e));
    else if (word(r, "nvml_index")) e->nvml_index = (uint32_t)number(r);
    else if (word(r, "architecture")) e->architecture = (uint32_t)number(r);
    else if (word(r, "profiling")) {
        if (e->n_profiling == (int)COUNT_OF(e->profiling)) refuse(r, "too many metric groups");
        dcgmProfMetricGroupInfo_v2 *g = &e->profiling[e->n_profiling++];
        g->majorId = (uint16_t)number(r);
        g->minorId = (uint16_t)number(r);
        while (!ended(r) && g->numFieldIds < COUNT_OF(g->fieldIds)) g->fieldIds[g->numFieldIds++] = (uint16_t)number(r);
    } else return attribute_line(r, e);
    return true;
}

static void health_line(Reader *r, Entity *e) {
    Incident *i = scenario_memory(r->scenario, sizeof *i), **end = &e->incidents;
    i->system = (uint32_t)number(r);
    i->health = (uint32_t)number(r);
    i->code = (uint32_t)number(r);
    i->message = text(r);
    while (*end) end = &(*end)->next;
    *end = i;
}

static void entity_line(Reader *r, Entity *e) {
    blanks(r);
    if (word(r, "id")) e->pair.entityId = (uint32_t)number(r);
    else if (word(r, "gone")) e->gone = true;
    else if (word(r, "status")) e->status = (uint32_t)number(r);
    else if (word(r, "time")) time_line(r, &e->time);
    else if (word(r, "health")) health_line(r, e);
    else if (strncmp(r->at, "field[", 6) == 0) r->at += 6, field_line(r, e);
    else if (!instance_line(r, e) && !gpu_line(r, e)) function_line(r, e->rows);
}

static Entity *gpu_in(Reader *r) {
    int slot = (int)number_below(r, DCGM_MAX_NUM_DEVICES, "no such slot");
    for (Entity *e = r->scenario->entities; e; e = e->next)
        if (e->pair.entityGroupId == DCGM_FE_GPU && e->slot == slot) return e;
    return entity_make(r->scenario, DCGM_FE_GPU, NULL, (uint32_t)slot, slot);
}

static Entity *other(Reader *r) {
    dcgmGroupEntityPair_t pair = {.entityGroupId = number_below(r, DCGM_FE_COUNT, "no such entity group")};
    pair.entityId = (uint32_t)number(r);
    for (Entity *e = r->scenario->entities; e; e = e->next)
        if (e->pair.entityGroupId == pair.entityGroupId && e->pair.entityId == pair.entityId) return e;
    return entity_make(r->scenario, pair.entityGroupId, NULL, pair.entityId, -1);
}

static void line(Reader *r) {
    Scenario *s = r->scenario;
    if (word(r, "gpu")) entity_line(r, gpu_in(r));
    else if (word(r, "entity")) entity_line(r, other(r));
    else if (word(r, "system")) entity_line(r, &s->system);
    else if (word(r, "release")) s->release = text(r);
    else if (word(r, "engine")) s->engine = number(r);
    else if (word(r, "gone")) s->gone = true;
    else if (word(r, "address")) {
        if (s->n_addresses == (int)COUNT_OF(s->addresses)) refuse(r, "too many addresses");
        s->addresses[s->n_addresses++] = text(r);
    } else if (word(r, "slow_refusal")) s->slow_refusal = true;
    else if (word(r, "no_nvml")) s->no_nvml = true;
    else if (word(r, "no_profiling")) s->no_profiling = true;
    else if (word(r, "needs_update")) s->needs_update = true;
    else if (word(r, "check_us")) s->held.check_us = number(r);
    else if (word(r, "missing")) s->missing[function(r)] = true;
    else if (word(r, "unknown")) s->unknown[number_below(r, DCGM_FI_MAX_FIELDS, "no such field")] = true;
    else refuse(r, "no such line");
}

/* What an instance has from those above it, whatever the order of the lines. */
static void finish(Scenario *s) {
    for (Entity *e = s->entities; e; e = e->next) {
        const Entity *gpu = gpu_of(e);
        if (!gpu || gpu == e) continue;
        e->gone |= e->parent->gone;
        if (gpu->status != DcgmEntityStatusOk) e->status = gpu->status;
        e->mig.nvmlGpuIndex = gpu->nvml_index;
        strncpy(e->mig.gpuUuid, gpu->attributes->identifiers.uuid, sizeof e->mig.gpuUuid - 1);
        if (e->pair.entityGroupId == DCGM_FE_GPU_I) e->mig.nvmlComputeInstanceId = UINT32_MAX;
        else e->mig.nvmlInstanceId = e->parent->mig.nvmlInstanceId;
    }
}

Scenario *scenario_parse(const char *path, char *content) {
    Scenario *s = calloc(1, sizeof *s);
    if (!s) abort();
    s->release = "4.6.0";
    s->last = &s->entities;
    s->system.slot = -1;
    Reader r = {.scenario = s, .path = path};
    read_lines(&r, content, line);
    finish(s);
    return s;
}
