/* Handles: one per UUID, for the life of the process. A pointer that is not one of them is refused, never followed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fake.h"

typedef struct {
    char *uuid;
} Handle;

static Handle handles[MAX_HANDLES];
static atomic_uint n_handles;
static uint32_t buckets[2 * MAX_HANDLES]; /* id + 1, by hash of the UUID */

static uint32_t hash(const char *uuid) {
    uint32_t h = 2166136261u;
    while (*uuid) h = (h ^ (unsigned char)*uuid++) * 16777619u;
    return h;
}

uint32_t handle_intern(const char *uuid) {
    uint32_t at = hash(uuid) % COUNT_OF(buckets);
    for (; buckets[at]; at = (at + 1) % COUNT_OF(buckets))
        if (strcmp(handles[buckets[at] - 1].uuid, uuid) == 0) return buckets[at] - 1;
    uint32_t id = atomic_load(&n_handles);
    if (id == MAX_HANDLES) {
        fputs("fakenvml: too many UUIDs\n", stderr);
        abort();
    }
    handles[id].uuid = strdup(uuid);
    buckets[at] = id + 1;
    atomic_store(&n_handles, id + 1);
    return id;
}

uint32_t handle_count(void) { return atomic_load(&n_handles); }

nvmlDevice_t handle_pointer(uint32_t id) { return (nvmlDevice_t)&handles[id]; }

bool handle_id(nvmlDevice_t handle, uint32_t *id) {
    uintptr_t at = (uintptr_t)handle, first = (uintptr_t)handles;
    if (at < first || (at - first) % sizeof *handles || (at - first) / sizeof *handles >= atomic_load(&n_handles)) return false;
    *id = (uint32_t)((at - first) / sizeof *handles);
    return true;
}
