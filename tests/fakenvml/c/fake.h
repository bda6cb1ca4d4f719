/* What the parts of the fake share. The format of a scenario stands at the head of scenario.c.
 *
 * Rule 1: a scenario is never changed after it was parsed; calls hold a reference to the one they began with.
 * Rule 2: every exported NVML function goes through call_begin/call_end, so that counts, delays, hangs, errors,
 *         lost GPUs and the shutdown check hold for all of them.
 * Rule 3: a handle names a UUID, never an index.
 */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include "nvml.h"

#define EXPORT __attribute__((visibility("default")))
#define COUNT_OF(a) (sizeof(a) / sizeof *(a))

enum {
    MAX_GPUS = 64,        /* slots of a scenario */
    MAX_INSTANCES = 16,   /* MIG devices of one GPU */
    MAX_HANDLES = 65536,  /* UUIDs one process may ever see */
};

/* Functions by number; 0 stands for "every function". */
typedef enum {
    FN_ANY,
#define ASK(name, ...) FN_##name,
#define VERSIONED(name, ...) FN_##name,
#define BY_HAND(name) FN_##name,
#include "functions.def"
#undef ASK
#undef VERSIONED
#undef BY_HAND
    FN_COUNT
} Fn;

extern const char *const fn_names[FN_COUNT];
Fn fn_by_name(const char *name, size_t length); /* FN_COUNT when there is none */

/* ---- scenario.c: the parsed file ---- */

typedef struct {
    enum { NUMBER, REAL, TEXT } kind;
    union {
        uint64_t number;
        double real;
        const char *text;
    };
} Value;

typedef struct {
    int n;
    uint32_t v[4];
} Args;

typedef struct Entry { /* what one function answers for one device and one set of arguments */
    struct Entry *next;
    Args args;
    bool has_values, has_error, hang, crash;
    int error;
    uint64_t delay_us;
    int n_values, room;
    Value *values;
} Entry;

typedef struct { /* a field value or a GPM metric (of type 1 when its value is a running total) */
    uint64_t key;
    int error, type;
    Value value;
} Keyed;

typedef struct {
    Keyed *items;
    int n, room;
} KeyedList;

typedef struct Device {
    struct Device *parent; /* the GPU of an instance, else NULL */
    const char *uuid;
    uint32_t handle;
    int slot, index;
    uint32_t gi, ci;
    bool lost, gone;
    KeyedList fields, gpm;
    struct Device *instances[MAX_INSTANCES];
    Entry *rows[FN_COUNT];
} Device;

typedef struct {
    uint64_t seq, type, data;
    int slot;
    uint32_t gi, ci;
} Event;

typedef struct Scenario Scenario;
struct Scenario {
    atomic_int refs;
    struct Chunk *memory;
    struct timespec mtime;
    uint64_t inode, size;
    const char *path;
    bool global_lock;
    uint64_t check_us;
    int gone_code, removed_code;
    bool missing[FN_COUNT];
    Device system;
    Device *gpus[MAX_GPUS];
    Device *by_index[MAX_GPUS];
    int n_gpus;
    Device **by_handle;
    uint32_t n_handles;
    Event *events;
    int n_events, room_events;
};

Scenario *scenario_acquire(void); /* the newest state of the file; NULL when there is none */
void scenario_hold(Scenario *s);
void scenario_release(Scenario *s);
Scenario *scenario_parse(const char *path, char *text);
void *scenario_memory(Scenario *s, size_t size);
void scenario_free(Scenario *s);
const Entry *entry_find(const Device *d, Fn fn, const Args *args);
const Keyed *keyed_find(const KeyedList *list, uint64_t key);
static inline uint64_t field_key(uint32_t id, uint32_t scope) { return (uint64_t)id << 32 | scope; }

/* ---- handles.c ---- */

uint32_t handle_intern(const char *uuid); /* only while parsing */
uint32_t handle_count(void);
nvmlDevice_t handle_pointer(uint32_t id);
bool handle_id(nvmlDevice_t handle, uint32_t *id);

/* ---- calls.c: what surrounds every call ---- */

typedef enum {
    SYSTEM,   /* no device */
    ANY,      /* a GPU or a MIG device */
    GPU,      /* a MIG handle is INVALID_ARGUMENT */
    INSTANCE, /* a GPU handle is INVALID_ARGUMENT */
} Wants;

typedef struct {
    Scenario *scenario;
    Device *device; /* NULL: none, or it is gone */
    const Entry *entry;
    bool locked, inside;
    bool found; /* the device was found on the way; what holds for the system was already obeyed */
} Call;

nvmlReturn_t call_begin(Call *call, Fn fn, Wants wants, nvmlDevice_t handle, const Args *args);
nvmlReturn_t call_end(Call *call, nvmlReturn_t rc);
void call_unlock(Call *call); /* give the global lock back before a long, honest wait */
nvmlReturn_t call_device(Call *call, Fn fn, Device *device, const Args *args); /* the same for a device found on the way */
void pause_us(uint64_t us);

typedef struct { /* an output of a function */
    void *to;
    size_t size;
    bool text;
} Out;

#define NUM(p) {(p), sizeof *(p), false}
#define STR(p, length) {(p), (length), true}
#define ARGS(...) (Args){(int)(sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)), {__VA_ARGS__}}
#define NO_ARGS (Args){0, {0}}

nvmlReturn_t answer(Fn fn, Wants wants, nvmlDevice_t handle, Args args, const Out *outs, int n_outs);
nvmlReturn_t put_values(const Entry *entry, const Out *outs, int n_outs);

/* ---- counts.c: what tests may look at ---- */

typedef enum { GAUGE_INFLIGHT, GAUGE_INITS, GAUGE_SAMPLES, GAUGE_EVENT_SETS, GAUGE_COUNT } Gauge;

void count_call(Fn fn, int slot);
void events_restart(void); /* a new nvmlInit: events come from the first on */
int64_t gauge_add(Gauge gauge, int64_t by); /* the value after */
int64_t gauge(Gauge gauge);
void counts_open(void);
extern atomic_uint release_generation;
extern atomic_bool hurried; /* a wait for events ends at its next look */

#endif
