/* Functions by name. */
#include <stdlib.h>
#include <string.h>
#include "fakelib.h"

static Fn *sorted;

static int by_name(const void *a, const void *b) {
    return strcmp(identity.fn_names[*(const Fn *)a], identity.fn_names[*(const Fn *)b]);
}

__attribute__((constructor)) static void sort_names(void) {
    sorted = calloc((size_t)identity.fn_count, sizeof *sorted);
    if (!sorted) abort();
    for (int i = 0; i < identity.fn_count; i++) sorted[i] = i;
    qsort(sorted, (size_t)identity.fn_count, sizeof *sorted, by_name);
}

Fn fn_by_name(const char *name, size_t length) {
    int low = 0, high = identity.fn_count - 1;
    while (low <= high) {
        int middle = (low + high) / 2;
        const char *candidate = identity.fn_names[sorted[middle]];
        int order = strncmp(name, candidate, length);
        if (order == 0 && candidate[length]) order = -1;
        if (order == 0) return sorted[middle];
        if (order < 0) high = middle - 1;
        else low = middle + 1;
    }
    return identity.fn_count;
}
