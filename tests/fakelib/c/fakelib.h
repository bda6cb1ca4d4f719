/* What the fake libraries in C share: text in, rules for functions, counts out. Each fake adds its functions.
 *
 * Rule 1: nothing here knows what a fake answers; a fake is known by its `identity`, its names and three hooks.
 * Rule 2: a scenario is never changed after it was parsed, but for the number of calls that a rule has met; calls hold a
 *         reference to the one they began with.
 */
#ifndef FAKELIB_H
#define FAKELIB_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define COUNT_OF(a) (sizeof(a) / sizeof *(a))

enum {
    MAX_GPUS = 64, /* slots of a scenario */
    FN_ANY = 0,    /* functions by number; 0 stands for "every function" */
};

typedef int Fn;

/* ---- what a fake says of itself ---- */

typedef struct {
    const char *name, *scenario_variable, *counts_variable;
    const char *const *fn_names; /* by number */
    int fn_count;
    const char *const *gauge_names;
    int gauge_count; /* at most MAX_GAUGES */
} Identity;

extern const Identity identity;

typedef struct Scenario Scenario; /* begins with a Held */
Scenario *scenario_parse(const char *path, char *text);
void path_changed(void); /* another test: what goes from call to call begins anew */
Fn fn_ruled_by(Fn fn);   /* the function whose rules hold for this one */

/* ---- text.c: memory of one scenario, and reading its lines ---- */

void *scenario_memory(Scenario *s, size_t size); /* zeros, for as long as the scenario is there */
void scenario_free(Scenario *s);

typedef struct {
    Scenario *scenario;
    const char *path;
    int line;
    char *at; /* the rest of the line */
} Reader;

typedef struct {
    enum { NUMBER, REAL, TEXT } kind;
    size_t length; /* of a text, which may hold zeros */
    union {
        uint64_t number;
        double real;
        const char *text;
    };
} Value;

_Noreturn void refuse(const Reader *r, const char *why);
void blanks(Reader *r);
bool ended(Reader *r);
bool word(Reader *r, const char *expected);
bool mark(Reader *r, char expected);
uint64_t number(Reader *r);
uint32_t number_below(Reader *r, uint32_t below, const char *why);
Value value(Reader *r);
const char *text(Reader *r);
void read_lines(Reader *r, char *content, void (*line)(Reader *r)); /* every line that is neither blank nor a comment */

/* ---- names.c ---- */

Fn fn_by_name(const char *name, size_t length); /* fn_count when there is none */

/* ---- rules.c: what tests say of a function ---- */

typedef struct {
    int n;
    uint32_t v[4];
} Args;

#define ARGS(...) (Args){(int)(sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)), {__VA_ARGS__}}
#define NO_ARGS (Args){0, {0}}

typedef struct Entry { /* what one function does for one device and one set of arguments */
    struct Entry *next;
    Args args;
    bool has_values, has_error, hang, crash;
    int error;
    int hang_calls; /* only so many of the calls hang; 0: all */
    atomic_int met; /* calls that have met a hang here */
    uint64_t delay_us;
    int n_values, room;
    Value *values;
} Entry;

Entry *row_find(Entry *row, const Args *args);
Entry *row_make(Scenario *s, Entry **row, const Args *args);
void entry_add(Scenario *s, Entry *e, Value v);
Fn function(Reader *r);
void function_line(Reader *r, Entry **rows);

typedef struct { /* what holds for one call: the first that says something wins */
    Entry *rules[8];
    int n;
} Rules;

void rules_add(Rules *r, Entry *const *rows, Fn fn, const Args *args);
typedef struct { /* what one call knows of its hang */
    int met; /* which call this is among those that meet it, from 0 */
    unsigned generation;
} Hang;

Hang rules_suffered(Rules *r); /* delays and crashes as they say; once a call */
bool rules_hold(const Rules *r, const Hang *h); /* whether the call hangs on; a moment has passed then */
int rules_error(const Rules *r);
void pause_us(uint64_t us);

/* ---- current.c: which scenario holds now ---- */

typedef struct {
    atomic_int refs;
    struct Chunk *chunks;
    struct timespec mtime;
    uint64_t inode, size;
    const char *path;
    uint64_t check_us;
} Held;

Scenario *scenario_acquire(void); /* the newest state of the file; NULL when there is none */
void scenario_hold(Scenario *s);
void scenario_release(Scenario *s);
static inline Held *held(Scenario *s) { return (Held *)s; }

/* ---- counts.c: what tests may look at ---- */

enum { MAX_GAUGES = 16, GAUGE_INFLIGHT = 0 /* every fake's first */ };

void count_call(Fn fn, int slot);
int64_t gauge_add(int gauge, int64_t by); /* the value after */
int64_t gauge(int gauge);
extern atomic_uint release_generation;

#endif
