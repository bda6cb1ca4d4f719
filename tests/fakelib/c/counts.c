/* Counts, in memory or in the file that the fake's variable names (shared by all processes that name it).
 *
 * The file: "FAKELIB\0" | u32 functions | u32 columns | u32 gauges | u32 0 | i64 gauges[MAX_GAUGES] |
 *           gauge names[MAX_GAUGES][64] | names[functions][64] | u64 counts[functions][columns].
 * Column 0 is calls without a device, column 1 + n the GPU in slot n (its MIG devices included).
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "fakelib.h"

enum { COLUMNS = MAX_GPUS + 1, NAME = 64 };

typedef struct {
    char magic[8];
    uint32_t functions, columns, gauge_count, unused;
    _Atomic int64_t gauges[MAX_GAUGES];
    char gauge_names[MAX_GAUGES][NAME];
    char names[][NAME];
} Board;

static _Atomic int64_t own_gauges[MAX_GAUGES];
static Board *board;
static _Atomic uint64_t (*counts)[COLUMNS]; /* in the board, behind the names */
static bool shared;
atomic_uint release_generation;

__attribute__((constructor)) static void counts_open(void) {
    size_t functions = (size_t)identity.fn_count;
    size_t head = sizeof(Board) + functions * NAME, size = head + functions * COLUMNS * sizeof(uint64_t);
    const char *path = getenv(identity.counts_variable);
    int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    void *at = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)size) == 0) at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    shared = at != MAP_FAILED;
    board = shared ? at : calloc(1, size);
    if (!board) abort();
    counts = (void *)((char *)board + head);
    board->functions = (uint32_t)functions;
    board->columns = COLUMNS;
    board->gauge_count = (uint32_t)identity.gauge_count;
    for (int i = 0; i < identity.gauge_count; i++) strncpy(board->gauge_names[i], identity.gauge_names[i], NAME - 1);
    for (int i = 1; i < identity.fn_count; i++) strncpy(board->names[i], identity.fn_names[i], NAME - 1);
    memcpy(board->magic, "FAKELIB", 8);
}

void count_call(Fn fn, int slot) { atomic_fetch_add_explicit(&counts[fn][slot + 1], 1, memory_order_relaxed); }

/* The gauges of this process decide what it does, so they are kept apart from the shared ones. */
int64_t gauge_add(int which, int64_t by) {
    if (shared) atomic_fetch_add(&board->gauges[which], by);
    return atomic_fetch_add(&own_gauges[which], by) + by;
}

int64_t gauge(int which) { return atomic_load(&own_gauges[which]); }

static uint64_t row_sum(int fn) {
    uint64_t sum = 0;
    for (int i = 0; i < COLUMNS; i++) sum += atomic_load(&counts[fn][i]);
    return sum;
}

EXPORT unsigned long long fakelib_calls(const char *function) {
    uint64_t sum = 0;
    if (function) {
        Fn fn = fn_by_name(function, strlen(function));
        return fn == identity.fn_count ? 0 : row_sum(fn);
    }
    for (int i = 0; i < identity.fn_count; i++) sum += row_sum(i);
    return sum;
}

/* Calls on the GPU in this slot and its MIG devices; slot -1 is calls without a device. */
EXPORT unsigned long long fakelib_calls_on(const char *function, int slot) {
    Fn fn = function ? fn_by_name(function, strlen(function)) : identity.fn_count;
    uint64_t sum = 0;
    if (slot < -1 || slot >= MAX_GPUS) return 0;
    if (fn != identity.fn_count) return atomic_load(&counts[fn][slot + 1]);
    for (int i = 0; i < identity.fn_count && !function; i++) sum += atomic_load(&counts[i][slot + 1]);
    return sum;
}

EXPORT void fakelib_reset_calls(void) {
    for (int i = 0; i < identity.fn_count; i++)
        for (int j = 0; j < COLUMNS; j++) atomic_store(&counts[i][j], 0);
}

/* A gauge of this process by its name; -1 when there is none of that name. */
EXPORT long long fakelib_gauge(const char *name) {
    for (int i = 0; i < identity.gauge_count; i++)
        if (strcmp(name, identity.gauge_names[i]) == 0) return gauge(i);
    return -1;
}

EXPORT void fakelib_release(void) { atomic_fetch_add(&release_generation, 1); }
