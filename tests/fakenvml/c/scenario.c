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
 *   gpu 0 FUNCTION = VALUES                the answer; several outputs are separated by blanks
 *   gpu 0 FUNCTION[1,0] = VALUES           the answer for these arguments
 *   gpu 0 FUNCTION ! 15                    fails with this code ([args] may be given here and below)
 *   gpu 0 FUNCTION delay_us 20000          takes this long
 *   gpu 0 FUNCTION hang                    blocks until the scenario has no hang here or fakenvml_release() is called
 *   gpu 0 FUNCTION crash                   takes the whole process along, as a defect of the library does (SIGSEGV)
 *   gpu 0 * hang                           the same for every call on this device (also `!`, delay_us and crash)
 *   system FUNCTION ...                    a call without a device, or the default for all devices; `system *` is every call
 *
 *   gpu 0 field[142/0] u64 7               NVML field id/scope: f64 u32 ul u64 i64 i32 u16
 *   gpu 0 field[142/0] ! 3                 the code of this one field
 *   gpu 0 gpm[1] = 12.5                    a GPM metric
 *   gpu 0 gpm[1] + 12.5                    one that is what this has grown by between the two samples
 *   gpu 0 gpm[1] ! 3                       the code of this one metric
 *   event 7 gpu 0 xid 79                   event number 7 (numbers grow); `gi N` and `ci N` may follow
 *
 * A value is a whole number, a number with a point or exponent, or a "string" with \" \\ \n and \xNN.
 * What is not said is NOT_SUPPORTED. Derived unless said: index, count, IsMigDeviceHandle, GI and CI ids, and whether
 * GPM is supported (it is when there is a gpm line).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fake.h"

struct Chunk {
    struct Chunk *next;
    size_t used, size;
    _Alignas(16) char data[];
};

void *scenario_memory(Scenario *s, size_t size) {
    size = (size + 15) & ~(size_t)15;
    if (!s->memory || s->memory->size - s->memory->used < size) {
        size_t room = size > 65536 ? size : 65536;
        struct Chunk *chunk = calloc(1, sizeof *chunk + room);
        if (!chunk) abort();
        chunk->next = s->memory;
        chunk->size = room;
        s->memory = chunk;
    }
    void *p = s->memory->data + s->memory->used;
    s->memory->used += size;
    return p;
}

void scenario_free(Scenario *s) {
    for (struct Chunk *chunk = s->memory, *next; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    free(s);
}

/* ---- reading a line ---- */

typedef struct {
    Scenario *scenario;
    const char *path;
    int line;
    char *at; /* the rest of the line */
} Reader;

static _Noreturn void refuse(const Reader *r, const char *why) {
    fprintf(stderr, "fakenvml: %s:%d: %s near '%s'\n", r->path, r->line, why, r->at ? r->at : "");
    abort();
}

static void blanks(Reader *r) {
    while (*r->at == ' ' || *r->at == '\t') r->at++;
}

static bool ended(Reader *r) {
    blanks(r);
    return *r->at == 0;
}

static bool word(Reader *r, const char *expected) {
    blanks(r);
    size_t n = strlen(expected);
    if (strncmp(r->at, expected, n) != 0 || (r->at[n] != ' ' && r->at[n] != '\t' && r->at[n] != 0)) return false;
    r->at += n;
    return true;
}

static bool mark(Reader *r, char expected) {
    blanks(r);
    if (*r->at != expected) return false;
    r->at++;
    return true;
}

static uint64_t number(Reader *r) {
    blanks(r);
    char *end;
    errno = 0;
    uint64_t value = *r->at == '-' ? (uint64_t)strtoll(r->at, &end, 0) : strtoull(r->at, &end, 0);
    if (end == r->at || errno) refuse(r, "a whole number is wanted");
    r->at = end;
    return value;
}

static int hex(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static const char *text(Reader *r) {
    if (!mark(r, '"')) refuse(r, "a string is wanted");
    char *start = scenario_memory(r->scenario, strlen(r->at) + 1), *to = start;
    for (;; r->at++) {
        char c = *r->at;
        if (!c) refuse(r, "the string has no end");
        if (c == '"') break;
        if (c == '\\') {
            c = *++r->at;
            if (c == 'n') c = '\n';
            else if (c == 'x') {
                int high = hex(r->at[1]), low = high < 0 ? -1 : hex(r->at[2]);
                if (low < 0) refuse(r, "\\x wants two hex digits");
                c = (char)(high << 4 | low);
                r->at += 2;
            } else if (c != '"' && c != '\\') refuse(r, "no such escape");
        }
        *to++ = c;
    }
    r->at++;
    *to = 0;
    return start;
}

static Value value(Reader *r) {
    blanks(r);
    if (*r->at == '"') return (Value){.kind = TEXT, .text = text(r)};
    size_t length = strcspn(r->at, " \t");
    bool is_hex = r->at[0] == '0' && (r->at[1] == 'x' || r->at[1] == 'X');
    if (!is_hex && strcspn(r->at, ".eEni") < length) { /* 1.5, 1e9, nan, inf */
        char *end;
        double real = strtod(r->at, &end);
        if (end == r->at) refuse(r, "a number is wanted");
        r->at = end;
        return (Value){.kind = REAL, .real = real};
    }
    return (Value){.kind = NUMBER, .number = number(r)};
}

static uint32_t slot(Reader *r, uint32_t below, const char *why) {
    uint64_t n = number(r);
    if (n >= below) refuse(r, why);
    return (uint32_t)n;
}

/* ---- entries ---- */

static bool same_args(const Args *a, const Args *b) {
    return a->n == b->n && memcmp(a->v, b->v, sizeof(uint32_t) * (size_t)a->n) == 0;
}

const Entry *entry_find(const Device *d, Fn fn, const Args *args) {
    for (const Entry *e = d->rows[fn]; e; e = e->next)
        if (same_args(&e->args, args)) return e;
    return NULL;
}

static Entry *entry_make(Scenario *s, Device *d, Fn fn, const Args *args) {
    Entry *found = (Entry *)entry_find(d, fn, args);
    if (found) return found;
    Entry *e = scenario_memory(s, sizeof *e), **end = &d->rows[fn];
    e->args = *args;
    while (*end) end = &(*end)->next;
    *end = e;
    return e;
}

static void entry_add(Scenario *s, Entry *e, Value v) {
    if (e->n_values == e->room) {
        int room = e->room ? e->room * 2 : 4;
        Value *values = scenario_memory(s, sizeof *values * (size_t)room);
        if (e->n_values) memcpy(values, e->values, sizeof *values * (size_t)e->n_values);
        e->values = values;
        e->room = room;
    }
    e->values[e->n_values++] = v;
    e->has_values = true;
}

static void derive(Scenario *s, Device *d, Fn fn, Value v) {
    Entry *e = entry_make(s, d, fn, &NO_ARGS);
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

static Fn function(Reader *r) {
    blanks(r);
    if (*r->at == '*') {
        r->at++;
        return FN_ANY;
    }
    size_t length = strcspn(r->at, " \t[");
    Fn fn = fn_by_name(r->at, length);
    if (fn == FN_COUNT) refuse(r, "the fake has no such function");
    r->at += length;
    return fn == FN_nvmlInitWithFlags ? FN_nvmlInit_v2 : fn;
}

static void function_line(Reader *r, Device *d) {
    Fn fn = function(r);
    Args args = NO_ARGS;
    if (*r->at == '[') {
        r->at++;
        do {
            if (args.n == (int)COUNT_OF(args.v)) refuse(r, "too many arguments");
            args.v[args.n++] = (uint32_t)number(r);
        } while (mark(r, ','));
        if (!mark(r, ']')) refuse(r, "] is wanted");
    }
    Entry *e = entry_make(r->scenario, d, fn, &args);
    if (mark(r, '=')) {
        e->has_values = true;
        e->n_values = 0;
        while (!ended(r)) entry_add(r->scenario, e, value(r));
    } else if (mark(r, '!')) {
        e->has_error = true;
        e->error = (int)number(r);
    } else if (word(r, "delay_us")) {
        e->delay_us = number(r);
    } else if (word(r, "hang")) {
        e->hang = true;
    } else if (word(r, "crash")) {
        e->crash = true;
    } else {
        refuse(r, "=, !, delay_us, hang or crash is wanted");
    }
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
    else function_line(r, d);
}

static void gpu_line(Reader *r) {
    Scenario *s = r->scenario;
    uint32_t n = slot(r, MAX_GPUS, "no such slot");
    if (!s->gpus[n]) {
        s->gpus[n] = scenario_memory(s, sizeof(Device));
        s->gpus[n]->slot = (int)n;
    }
    Device *d = s->gpus[n];
    if (word(r, "mig")) {
        uint32_t m = slot(r, MAX_INSTANCES, "no such MIG index");
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
    e.slot = (int)slot(r, MAX_GPUS, "no such slot");
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
    if (ended(r) || *r->at == '#') return;
    if (word(r, "gpu")) gpu_line(r);
    else if (word(r, "system")) function_line(r, &s->system);
    else if (word(r, "event")) event_line(r);
    else if (word(r, "driver")) system_text(r, FN_nvmlSystemGetDriverVersion);
    else if (word(r, "nvml")) system_text(r, FN_nvmlSystemGetNVMLVersion);
    else if (word(r, "cuda")) {
        uint64_t version = number(r);
        derive_number(s, &s->system, FN_nvmlSystemGetCudaDriverVersion, version);
        derive_number(s, &s->system, FN_nvmlSystemGetCudaDriverVersion_v2, version);
    } else if (word(r, "globallock")) s->global_lock = true;
    else if (word(r, "check_us")) s->check_us = number(r);
    else if (word(r, "gone_code")) s->gone_code = (int)number(r);
    else if (word(r, "removed_code")) s->removed_code = (int)number(r);
    else if (word(r, "missing")) s->missing[function(r)] = true;
    else refuse(r, "no such line");
    if (!ended(r)) refuse(r, "something is left over");
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
    for (char *next = content; next;) {
        r.line++;
        r.at = strsep(&next, "\n");
        line(&r);
    }
    finish(&r);
    return s;
}
