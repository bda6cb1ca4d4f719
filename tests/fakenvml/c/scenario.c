/* The scenario: a text file that says what the driver answers.
 *
 * One fact a line; blank lines and lines that begin with # are skipped. The file may be replaced (by rename) at any
 * time: every call looks at its inode, size and mtime first and reads it again when they changed. A line that is not
 * understood aborts the process with its number.
 *
 *   driver "570.124.06"                    nvmlSystemGetDriverVersion
 *   nvml "12.570.124.06"                   nvmlSystemGetNVMLVersion
 *   cuda 12080                             nvmlSystemGetCudaDriverVersion and _v2
 *   globallock                             one mutex is held during every call
 *   check_us 1000                          look at the file no more often than this (for benchmarks; default: every call)
 *   gone_code 15                           what a handle of a GPU that is gone answers (default GPU_IS_LOST)
 *   removed_code 6                         what a handle of a MIG device that is gone answers (default NOT_FOUND)
 *   missing nvmlDeviceGetMemoryInfo_v2     the function answers FUNCTION_NOT_FOUND; __init__.py also leaves the symbol out
 *
 *   gpu 0 uuid "GPU-..."                   the identity of the GPU in slot 0; handles belong to UUIDs
 *   gpu 0 lost                             fell off the bus: GPU_IS_LOST for every call; count and indices stay
 *   gpu 0 gone                             the count is one less and later GPUs move up
 *   gpu 0 mig 1 uuid "MIG-..."             MIG device 1 of that GPU; every device line below may follow `gpu 0 mig 1` too
 *   gpu 0 mig 1 gi 9                       its GPU instance id
 *   gpu 0 mig 1 ci 0                       its compute instance id
 *
 *   gpu 0 FUNCTION = VALUES                the answer, and every other rule for functions: see fakelib/c/rules.c
 *   system FUNCTION ...                    a call without a device, or the default for all devices; `system *` is every call
 *
 *   gpu 0 field[142/0] u64 7               NVML field id/scope: f64 u32 ul u64 i64 i32 u16
 *   gpu 0 field[142/0] ! 3                 the code of this one field
 *   gpu 0 gpm[1] = 12.5                    a GPM metric
 *   gpu 0 gpm[1] + 12.5                    one that is what this has grown by between the two samples
 *   gpu 0 gpm[1] ! 3                       the code of this one metric
 *   event 7 gpu 0 xid 79                   event number 7 (numbers grow); `gi N` and `ci N` may follow
 *
 * What is not said is NOT_SUPPORTED. Derived unless said: index, count, IsMigDeviceHandle, GI and CI ids, and whether
 * GPM is supported (it is when there is a gpm line).
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include "fake.h"

/* ---- what is added to a device ---- */

static void derive(Scenario *s, Device *d, Fn fn, Value v) {
    Entry *e = row_make(s, &d->rows[fn], &NO_ARGS);
    if (!e->has_values) entry_add(s, e, v);
}

static void derive_number(Scenario *s, Device *d, Fn fn, uint64_t n) {
    derive(s, d, fn, (Value){.kind = NUMBER, .number = n});
}

static Keyed *keyed_add(Scenario *s, KeyedList *list, uint64_t key) {
    if (list->n == list->room) {
        int room = list->room ? list->room * 2 : 32;
        Keyed *items = scenario_memory(s, sizeof *items * (size_t)room);
        if (list->n) memcpy(items, list->items, sizeof *items * (size_t)list->n);
        list->items = items;
        list->room = room;
    }
    Keyed *k = &list->items[list->n++];
    *k = (Keyed){.key = key};
    return k;
}

static int by_key(const void *a, const void *b) {
    uint64_t x = ((const Keyed *)a)->key, y = ((const Keyed *)b)->key;
    return x < y ? -1 : x > y;
}

const Keyed *keyed_find(const KeyedList *list, uint64_t key) {
    Keyed wanted = {.key = key};
    return list->n ? bsearch(&wanted, list->items, (size_t)list->n, sizeof wanted, by_key) : NULL;
}

/* ---- lines ---- */

static const char *const type_names[] = {"f64", "u32", "ul", "u64", "i64", "i32", "u16"}; /* by nvmlValueType_t */

static void field_line(Reader *r, Device *d) {
    uint32_t id = (uint32_t)number(r), scope = 0;
    if (mark(r, '/')) scope = (uint32_t)number(r);
    if (!mark(r, ']')) refuse(r, "] is wanted");
    Keyed *k = keyed_add(r->scenario, &d->fields, field_key(id, scope));
    if (mark(r, '!')) {
        k->error = (int)number(r);
        return;
    }
    for (int i = 0; i < (int)COUNT_OF(type_names); i++)
        if (word(r, type_names[i])) {
            k->type = i;
            k->value = value(r);
            return;
        }
    refuse(r, "a value type is wanted");
}

static void gpm_line(Reader *r, Device *d) {
    Keyed *k = keyed_add(r->scenario, &d->gpm, number(r));
    if (!mark(r, ']')) refuse(r, "] is wanted");
    if (mark(r, '!')) {
        k->error = (int)number(r);
        return;
    }
    k->type = mark(r, '+');
    if (!k->type && !mark(r, '=')) refuse(r, "=, + or ! is wanted");
    Value v = value(r);
    if (v.kind == TEXT) refuse(r, "a number is wanted");
    k->value = v.kind == REAL ? v : (Value){.kind = REAL, .real = (double)(int64_t)v.number};
}

static void device_line(Reader *r, Device *d) {
    blanks(r);
    if (word(r, "uuid")) d->uuid = text(r);
    else if (word(r, "lost")) d->lost = true;
    else if (word(r, "gone")) d->gone = true;
    else if (d->parent && word(r, "gi")) d->gi = (uint32_t)number(r);
    else if (d->parent && word(r, "ci")) d->ci = (uint32_t)number(r);
    else if (strncmp(r->at, "field[", 6) == 0) r->at += 6, field_line(r, d);
    else if (strncmp(r->at, "gpm[", 4) == 0) r->at += 4, gpm_line(r, d);
    else function_line(r, d->rows);
}

static void gpu_line(Reader *r) {
    Scenario *s = r->scenario;
    uint32_t n = number_below(r, MAX_GPUS, "no such slot");
    if (!s->gpus[n]) {
        s->gpus[n] = scenario_memory(s, sizeof(Device));
        s->gpus[n]->slot = (int)n;
    }
    Device *d = s->gpus[n];
    if (word(r, "mig")) {
        uint32_t m = number_below(r, MAX_INSTANCES, "no such MIG index");
        if (!d->instances[m]) {
            d->instances[m] = scenario_memory(s, sizeof(Device));
            d->instances[m]->parent = d;
            d->instances[m]->slot = (int)n;
            d->instances[m]->index = (int)m;
        }
        d = d->instances[m];
    }
    device_line(r, d);
}

static void event_line(Reader *r) {
    Scenario *s = r->scenario;
    if (s->n_events == s->room_events) {
        int room = s->room_events ? s->room_events * 2 : 8;
        Event *events = scenario_memory(s, sizeof *events * (size_t)room);
        if (s->n_events) memcpy(events, s->events, sizeof *events * (size_t)s->n_events);
        s->events = events;
        s->room_events = room;
    }
    Event e = {.type = nvmlEventTypeXidCriticalError, .gi = UINT32_MAX, .ci = UINT32_MAX};
    e.seq = number(r);
    if (!word(r, "gpu")) refuse(r, "gpu is wanted");
    e.slot = (int)number_below(r, MAX_GPUS, "no such slot");
    if (!word(r, "xid")) refuse(r, "xid is wanted");
    e.data = number(r);
    if (word(r, "gi")) e.gi = (uint32_t)number(r);
    if (word(r, "ci")) e.ci = (uint32_t)number(r);
    s->events[s->n_events++] = e;
}

static void system_text(Reader *r, Fn fn) {
    derive(r->scenario, &r->scenario->system, fn, (Value){.kind = TEXT, .text = text(r)});
}

static void line(Reader *r) {
    Scenario *s = r->scenario;
    if (word(r, "gpu")) gpu_line(r);
    else if (word(r, "system")) function_line(r, s->system.rows);
    else if (word(r, "event")) event_line(r);
    else if (word(r, "driver")) system_text(r, FN_nvmlSystemGetDriverVersion);
    else if (word(r, "nvml")) system_text(r, FN_nvmlSystemGetNVMLVersion);
    else if (word(r, "cuda")) {
        uint64_t version = number(r);
        derive_number(s, &s->system, FN_nvmlSystemGetCudaDriverVersion, version);
        derive_number(s, &s->system, FN_nvmlSystemGetCudaDriverVersion_v2, version);
    } else if (word(r, "globallock")) s->global_lock = true;
    else if (word(r, "check_us")) s->held.check_us = number(r);
    else if (word(r, "gone_code")) s->gone_code = (int)number(r);
    else if (word(r, "removed_code")) s->removed_code = (int)number(r);
    else if (word(r, "missing")) s->missing[function(r)] = true;
    else refuse(r, "no such line");
}

/* ---- after the last line ---- */

static void finish_device(Reader *r, Device *d) {
    Scenario *s = r->scenario;
    if (!d->uuid) refuse(r, "a device has no uuid");
    d->handle = handle_intern(d->uuid);
    if (d->fields.n) qsort(d->fields.items, (size_t)d->fields.n, sizeof(Keyed), by_key);
    if (d->gpm.n) qsort(d->gpm.items, (size_t)d->gpm.n, sizeof(Keyed), by_key);
    derive(s, d, FN_nvmlDeviceGetUUID, (Value){.kind = TEXT, .text = d->uuid});
    derive_number(s, d, FN_nvmlDeviceGetIndex, (uint64_t)d->index);
    derive_number(s, d, FN_nvmlDeviceIsMigDeviceHandle, d->parent != NULL);
    derive_number(s, d, FN_nvmlGpmQueryDeviceSupport, d->gpm.n > 0);
    if (d->parent) {
        derive_number(s, d, FN_nvmlDeviceGetGpuInstanceId, d->gi);
        derive_number(s, d, FN_nvmlDeviceGetComputeInstanceId, d->ci);
    }
}

static void finish(Reader *r) {
    Scenario *s = r->scenario;
    for (int i = 0; i < MAX_GPUS; i++) {
        Device *d = s->gpus[i];
        if (!d) continue;
        d->index = s->n_gpus;
        if (!d->gone) s->by_index[s->n_gpus++] = d;
        finish_device(r, d);
        for (int m = 0; m < MAX_INSTANCES; m++)
            if (d->instances[m]) {
                d->instances[m]->lost |= d->lost;
                d->instances[m]->gone |= d->gone;
                finish_device(r, d->instances[m]);
            }
    }
    s->n_handles = handle_count();
    s->by_handle = scenario_memory(s, sizeof *s->by_handle * (s->n_handles + 1));
    for (int i = 0; i < MAX_GPUS; i++) {
        Device *d = s->gpus[i];
        if (!d) continue;
        s->by_handle[d->handle] = d;
        for (int m = 0; m < MAX_INSTANCES; m++)
            if (d->instances[m]) s->by_handle[d->instances[m]->handle] = d->instances[m];
    }
    derive_number(s, &s->system, FN_nvmlDeviceGetCount_v2, (uint64_t)s->n_gpus);
}

Scenario *scenario_parse(const char *path, char *content) {
    Scenario *s = calloc(1, sizeof *s);
    if (!s) abort();
    s->gone_code = NVML_ERROR_GPU_IS_LOST;
    s->removed_code = NVML_ERROR_NOT_FOUND;
    s->system.slot = -1;
    Reader r = {.scenario = s, .path = path};
    read_lines(&r, content, line);
    finish(&r);
    return s;
}
