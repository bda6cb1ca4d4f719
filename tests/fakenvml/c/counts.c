/* Counts, in memory or in the file that FAKENVML_COUNTS names (shared by all processes that name it).
 *
 * The file: "FAKENVML" | u32 functions | u32 columns | i64 gauges[GAUGE_COUNT] | names[functions][64] | u64 counts[functions][columns].
 * Column 0 is calls without a device, column 1 + n the GPU in slot n (its MIG devices included).
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "fake.h"

enum { COLUMNS = MAX_GPUS + 1, NAME = 64 };

typedef struct {
    char magic[8];
    uint32_t functions, columns;
    _Atomic int64_t gauges[GAUGE_COUNT];
    char names[FN_COUNT][NAME];
    _Atomic uint64_t counts[FN_COUNT][COLUMNS];
} Board;

static Board own;
static Board *board = &own;
atomic_uint release_generation;
atomic_bool hurried;

__attribute__((constructor)) void counts_open(void) {
    const char *path = getenv("FAKENVML_COUNTS");
    int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (fd >= 0 && ftruncate(fd, sizeof(Board)) == 0) {
        void *at = mmap(NULL, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (at != MAP_FAILED) board = at;
    }
    if (fd >= 0) close(fd);
    board->functions = FN_COUNT;
    board->columns = COLUMNS;
    for (int i = 1; i < FN_COUNT; i++) strncpy(board->names[i], fn_names[i], NAME - 1);
    memcpy(board->magic, "FAKENVML", 8);
}

void count_call(Fn fn, int slot) { atomic_fetch_add_explicit(&board->counts[fn][slot + 1], 1, memory_order_relaxed); }

/* The gauges of this process decide what it does, so they are kept apart from the shared ones. */
int64_t gauge_add(Gauge which, int64_t by) {
    if (board != &own) atomic_fetch_add(&board->gauges[which], by);
    return atomic_fetch_add(&own.gauges[which], by) + by;
}

int64_t gauge(Gauge which) { return atomic_load(&own.gauges[which]); }

static uint64_t row_sum(int fn) {
    uint64_t sum = 0;
    for (int i = 0; i < COLUMNS; i++) sum += atomic_load(&board->counts[fn][i]);
    return sum;
}

EXPORT unsigned long long fakenvml_calls(const char *function) {
    uint64_t sum = 0;
    if (function) {
        Fn fn = fn_by_name(function, strlen(function));
        return fn == FN_COUNT ? 0 : row_sum((int)fn);
    }
    for (int i = 0; i < FN_COUNT; i++) sum += row_sum(i);
    return sum;
}

/* Calls on the GPU in this slot and its MIG devices; slot -1 is calls without a device. */
EXPORT unsigned long long fakenvml_calls_on(const char *function, int slot) {
    Fn fn = function ? fn_by_name(function, strlen(function)) : FN_COUNT;
    uint64_t sum = 0;
    if (slot < -1 || slot >= MAX_GPUS) return 0;
    if (fn != FN_COUNT) return atomic_load(&board->counts[fn][slot + 1]);
    for (int i = 0; i < FN_COUNT && !function; i++) sum += atomic_load(&board->counts[i][slot + 1]);
    return sum;
}

EXPORT void fakenvml_reset_calls(void) {
    for (int i = 0; i < FN_COUNT; i++)
        for (int j = 0; j < COLUMNS; j++) atomic_store(&board->counts[i][j], 0);
}

EXPORT int fakenvml_live_samples(void) { return (int)gauge(GAUGE_SAMPLES); }
EXPORT int fakenvml_live_event_sets(void) { return (int)gauge(GAUGE_EVENT_SETS); }
EXPORT int fakenvml_inflight(void) { return (int)gauge(GAUGE_INFLIGHT); }
EXPORT int fakenvml_inits(void) { return (int)gauge(GAUGE_INITS); }
EXPORT void fakenvml_release(void) { atomic_fetch_add(&release_generation, 1); }
EXPORT void fakenvml_hurry(int on) { atomic_store(&hurried, on != 0); }
