/* What the parts of the fake share. The format of a scenario stands at the head of scenario.c.
 * What it shares with other fake libraries stands in tests/fakelib/c.
 *
 * Rule 1: every exported NVML function goes through call_begin/call_end, so that counts, delays, hangs, errors,
 *         lost GPUs and the shutdown check hold for all of them.
 * Rule 2: a handle names a UUID, never an index.
 */
#ifndef FAKE_H
#define FAKE_H

#include "fakelib.h"
#include "nvml.h"

enum {
    MAX_INSTANCES = 16,   /* MIG devices of one GPU */
    MAX_HANDLES = 65536,  /* UUIDs one process may ever see */
};

/* Functions by number. */
enum {
    FN_FIRST = FN_ANY,
#define ASK(name, ...) FN_##name,
#define VERSIONED(name, ...) FN_##name,
#define BY_HAND(name) FN_##name,
#include "functions.def"
#undef ASK
#undef VERSIONED
#undef BY_HAND
    FN_COUNT
};

extern const char *const fn_names[FN_COUNT];

/* ---- scenario.c: the parsed file ---- */

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

struct Scenario {
    Held held;
    bool global_lock;
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

static inline const Entry *entry_find(const Device *d, Fn fn, const Args *args) { return row_find(d->rows[fn], args); }
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

typedef struct { /* an output of a function */
    void *to;
    size_t size;
    bool text;
} Out;

#define NUM(p) {(p), sizeof *(p), false}
#define STR(p, length) {(p), (length), true}

nvmlReturn_t answer(Fn fn, Wants wants, nvmlDevice_t handle, Args args, const Out *outs, int n_outs);
nvmlReturn_t put_values(const Entry *entry, const Out *outs, int n_outs);

/* ---- events.c ---- */

void events_restart(void); /* a new nvmlInit: events come from the first on */

enum { GAUGE_INITS = GAUGE_INFLIGHT + 1, GAUGE_SAMPLES, GAUGE_EVENT_SETS, GAUGE_COUNT };

#endif
