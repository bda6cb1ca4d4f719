/* What the parts of the fake share. The format of a scenario stands at the head of scenario.c.
 * What it shares with other fake libraries stands in tests/fakelib/c.
 *
 * Rule 1: every exported DCGM function goes through call_begin/call_end, so that counts, delays, hangs, errors and dead
 *         engines hold for all of them.
 * Rule 2: what a caller made (connections, groups, field groups, watches) lives in an Engine under engine_lock, which is
 *         never held while a call waits or calls back.
 */
#ifndef FAKE_H
#define FAKE_H

#include "dcgm.h"
#include "fakelib.h"

enum {
    FN_FIRST = FN_ANY,
#define FUNCTION(name) FN_##name,
#include "functions.def"
#undef FUNCTION
    FN_COUNT
};

enum { GAUGE_INITS = GAUGE_INFLIGHT + 1, GAUGE_HANDLES, GAUGE_GROUPS, GAUGE_FIELD_GROUPS, GAUGE_WATCHES, GAUGE_OVERLAPS, GAUGE_COUNT };

/* ---- fields.c ---- */

typedef struct {
    char type; /* i d s b; 0: no such field */
    uint8_t level;
    bool global, profiling;
} Field;

const Field *field_by_id(unsigned id); /* NULL when there is none */

/* ---- scenario.c ---- */

typedef struct { /* when a value was measured */
    enum { UNSAID, AGE, AT } kind;
    int64_t us, step_us; /* the step is added for every sample taken */
} Time;

typedef struct Past { /* one of the values that a field has had */
    struct Past *next;
    int64_t ts;
    Value value;
} Past;

typedef struct {
    Time time;
    int status;
    int blank; /* 0: a value, else 1 + what it adds to the blank value: none, not found, not supported, not permitted */
    Value value;
    Value step; /* added for every sample taken */
    Past *past; /* in the order of the file; the last one is the latest */
} Answer;

typedef struct Incident {
    struct Incident *next;
    uint32_t system, health, code;
    const char *message;
} Incident;

typedef struct Entity {
    struct Entity *next, *parent; /* all in the order of the file; the GPU of an instance, the instance of a compute instance */
    dcgmGroupEntityPair_t pair;
    int slot; /* of the GPU that it belongs to; -1: none */
    bool gone;
    uint32_t status;
    Time time;
    Answer *answers[DCGM_FI_MAX_FIELDS];
    Incident *incidents;
    dcgmDeviceAttributes_v3 *attributes; /* of a GPU */
    uint32_t nvml_index, architecture;
    dcgmMigEntityInfo_t mig; /* of an instance */
    dcgmProfMetricGroupInfo_v2 profiling[10];
    int n_profiling;
    Entry *rows[FN_COUNT];
} Entity;

struct Scenario {
    Held held;
    const char *release;
    uint64_t engine; /* which one it is: another number is an engine that was started anew */
    bool gone, slow_refusal, no_nvml, no_profiling, needs_update;
    const char *addresses[16];
    int n_addresses;
    bool missing[FN_COUNT], unknown[DCGM_FI_MAX_FIELDS];
    Entity system, *entities, **last;
};

const Entity *entity_find(const Scenario *s, dcgmGroupEntityPair_t pair); /* NULL when it is not there now */
const Entity *gpu_of(const Entity *e);                                    /* NULL when it belongs to none */
bool is_old(const Scenario *s);                                           /* DCGM 3 */

/* ---- engine.c ---- */

typedef struct {
    bool used;
    dcgmHandle_t owner;
    uintptr_t id;
    char name[256];
    uint32_t systems; /* whose health is watched */
    int n;
    dcgmGroupEntityPair_t entities[DCGM_GROUP_MAX_ENTITIES];
} Group;

typedef struct {
    bool used;
    dcgmHandle_t owner;
    uintptr_t id;
    char name[256];
    int n;
    uint16_t fields[DCGM_MAX_FIELD_IDS_PER_FIELD_GROUP];
} FieldGroup;

typedef struct {
    uint32_t samples; /* taken since the watch began */
    bool fresh;       /* dcgmUpdateAllFields took the last one, and nobody has read it */
} Cell;

typedef struct Watch {
    struct Watch *next;
    dcgmHandle_t owner;
    uintptr_t group, field_group;
    int n_entities, n_fields;
    dcgmGroupEntityPair_t *entities;
    uint16_t *fields;
    Cell *cells; /* entities times fields */
    long long interval_us;
    double keep_age;
    int keep_samples;
} Watch;

typedef struct {
    Group groups[DCGM_MAX_NUM_GROUPS];
    FieldGroup field_groups[DCGM_MAX_NUM_FIELD_GROUPS];
    Watch *watches;
} Engine;

extern pthread_mutex_t engine_lock;
extern uintptr_t next_id; /* of a group or a field group */
void watch_free(Watch **at);
Engine *engine_of(const Scenario *s, dcgmHandle_t handle); /* NULL: the connection is not valid; with the lock held */
Group *group_find(Engine *e, uintptr_t id);
FieldGroup *field_group_find(Engine *e, uintptr_t id);
/* The entities of a group, one of those that are always there too; -1 when there is none. With the lock held. */
int group_entities(const Scenario *s, Engine *e, uintptr_t id, dcgmGroupEntityPair_t *to);
int entities_of(const Scenario *s, uint32_t group, bool supported, dcgmGroupEntityPair_t *to, int room);
Cell *watch_cell(Engine *e, const Field *f, dcgmGroupEntityPair_t pair, unsigned field); /* NULL: not watched */

/* ---- calls.c: what surrounds every call ---- */

typedef enum {
    NOTHING, /* may be called before dcgmInit */
    INIT,
    HANDLE,
} Wants;

typedef struct {
    Scenario *scenario;
    dcgmHandle_t handle;
    Fn fn;
} Call;

/* *about*: whose rules hold besides those of the system; *counted*: on whose GPU the call is counted. */
dcgmReturn_t call_begin(Call *call, Fn fn, Wants wants, dcgmHandle_t handle, const dcgmGroupEntityPair_t *about,
                        const dcgmGroupEntityPair_t *counted);
dcgmReturn_t call_end(Call *call, dcgmReturn_t rc);
/* The same for an entity found on the way: waits as it is told to, gives its error. */
int call_entity(Call *call, dcgmGroupEntityPair_t about);
/* With the lock: the engine that answers the call, or NULL without the lock. */
Engine *call_engine(Call *call);

#define BEGIN(name, wants, handle, about)                                                          \
    Call call;                                                                                     \
    dcgmReturn_t rc = call_begin(&call, FN_##name, wants, handle, about, about)
#define END return call_end(&call, rc)
#define UNLOCK pthread_mutex_unlock(&engine_lock)

#endif
